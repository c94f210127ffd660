"""Subscriptions clustered into multicast groups (Casalicchio et al.)."""
