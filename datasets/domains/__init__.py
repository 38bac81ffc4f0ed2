"""Domains: a workload under a sequence of distribution shifts."""
