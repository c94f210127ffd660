"""A matcher as one file, mapped into the memory of any number of processes.

matcher_file  the file: preamble, arrays, header, checksums
value_codec   records and arrays as plain nodes and blobs, and back
"""
