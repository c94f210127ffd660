"""The normal form: boxes and a residual."""
