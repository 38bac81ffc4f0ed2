"""Domains: a workload whose pictures are shifted, domain after domain."""
