"""Batch jobs: match files, backtest, analyse a table, adapt."""
