"""The Kubernetes store beside a real or a played API server, the manifests and the chart."""
