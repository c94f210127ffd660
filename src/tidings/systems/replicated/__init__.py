"""Replicated: every partition holds every subscription."""
