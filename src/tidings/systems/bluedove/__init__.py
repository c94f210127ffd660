"""BlueDove: segments along several dimensions, the least loaded of several candidates (Li et al., 2011)."""
