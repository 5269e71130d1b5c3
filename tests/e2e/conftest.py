"""What every end-to-end test may ask for."""

from tests.e2e.lab_process import home
from tests.kubernetes.api_server import kube, shared_kube
from tests.kubernetes.manifests import kubectl

__all__ = ["home", "kube", "kubectl", "shared_kube"]
