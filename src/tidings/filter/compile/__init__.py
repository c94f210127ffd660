"""Many filters at once: filters of one shape share a plan."""
