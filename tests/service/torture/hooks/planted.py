"""A bug that was real, put back: TIDINGS_PLANTED names its row. `after` is given by `points/sitecustomize.py`."""

import os

ROW = os.environ["TIDINGS_PLANTED"]
