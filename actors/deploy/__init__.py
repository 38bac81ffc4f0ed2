"""Files that put driftlab on machines of your own, on a cloud, or on Kubernetes."""
