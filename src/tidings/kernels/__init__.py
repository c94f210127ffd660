"""Machine code from Python, by numba.

decorator  `@kernel`: compiles a function and keeps the machine code for later processes
hashing    hashes of texts and numbers, the same everywhere
simd       comparisons of 32 or 64 bytes at once, and other instructions that numba lacks
"""
