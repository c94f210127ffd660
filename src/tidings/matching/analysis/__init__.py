"""Which filters imply which others, proved on their boxes: see `laws` for what is found and what may be missed."""
