"""The data directory of a service, and what is done to it as a whole.

data_directory    the files: their names, formats and writers
private_files     keeps all files readable by their owner alone
scratch_folders   temporary files of a driver and its Spark
backup            `tidings backup` and `tidings restore`
check_data        `tidings check-data`: the SQLite files, and whether they agree
check_streams     `tidings check-data`: indexes and checkpoints
"""
