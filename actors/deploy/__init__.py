"""Deployment files for a cluster of own computers, a cloud, or Kubernetes."""
