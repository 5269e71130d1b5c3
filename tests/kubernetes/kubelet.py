"""A kubelet's part in a manifest: makes a pod's volumes on a node, starts its containers, asks its probes.

The pod's spec comes from the API server, with its defaults in it. A container is a process of this machine (see
tests/kubernetes/containers.py) that runs what the image would; what is in volumes comes from the API server as well.
"""

import base64
import http.client
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.hosts.namespaces import NetworkNamespace
from tests.kubernetes.api_server import ApiServer, Document
from tests.kubernetes.containers import ENVIRONMENT, Mount, Rights, start
from tests.kubernetes.manifests import container_of
from tests.patience import PATIENCE
from tests.tools import CACHE, find_tool
from tests.waiting import eventually

_MODULES: Final = {name: f"flannelette.services.{name}.main" for name in ("lease", "dataplane", "masq", "ctl")}
_CTL_USER: Final = 10001
"""And group, of the image with the command line."""


class Kubelet:
    """Of one node, whose files are in `directory`/host."""

    def __init__(
        self, node: str, address: str, namespace: NetworkNamespace, directory: Path, kube: ApiServer
    ) -> None:
        self.node = node
        self.address = address
        self.namespace = namespace
        self.directory = directory
        self.host = directory / "host"
        self._kube = kube

    def start(self, name: str, template: Document, kube_namespace: str = "kube-flannel") -> "Pod":
        """A pod of this template. Every kind of volume that is in it must be known here."""
        directory = self.directory / name
        directory.mkdir()
        pod = template["spec"]
        assert pod["hostNetwork"] is True, "others have no network before we are ready"
        facts = {"spec.nodeName": self.node, "metadata.namespace": kube_namespace, "status.hostIP": self.address}
        volumes = {v["name"]: self.volume(v, directory, kube_namespace, pod) for v in pod.get("volumes", ())}
        return Pod(self.namespace, directory, pod, volumes, facts)

    def plug(self, pod: NetworkNamespace) -> None:
        """A new pod gets its network as from a container runtime: by the plugins of the installed configuration."""
        (self.host / "var/lib").mkdir(parents=True, exist_ok=True)
        script = (
            f"mkdir -p /run/flannel; mount --bind {self.host}/run/flannel /run/flannel; "
            f"mount --bind {self.host}/var/lib /var/lib; exec {find_tool('cnitool')} add cbr0 {pod.path}"
        )
        where = {"CNI_PATH": str(find_plugins()), "NETCONFPATH": str(self.host / "etc/cni/net.d")}
        done = subprocess.run(
            self.namespace.command("sh", "-euc", script),
            env={**os.environ, **where},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def volume(self, volume: Document, directory: Path, kube_namespace: str, pod: Document) -> Path:
        """Made, with what shall be in it."""
        path = directory / f"volume-{volume['name']}"
        if host := volume.get("hostPath"):
            return self._host_path(Path(host["path"]), host.get("type", ""))
        path.mkdir()
        if "emptyDir" in volume:
            group = pod["securityContext"]["fsGroup"]
            with suppress(PermissionError, OSError):  # in a user namespace without such a group
                os.chown(path, 0, group)
            path.chmod(0o2777)
        elif config := volume.get("configMap"):
            _write(
                path,
                self._kube.call("GET", f"/api/v1/namespaces/{kube_namespace}/configmaps/{config['name']}")["data"],
            )
        elif secret := volume.get("secret"):
            data = self._kube.call("GET", f"/api/v1/namespaces/{kube_namespace}/secrets/{secret['secretName']}")[
                "data"
            ]
            _write(path, {key: base64.b64decode(text).decode() for key, text in data.items()})
        elif projected := volume.get("projected"):
            for source in projected["sources"]:
                _write(path, self._projected(source, kube_namespace, pod))
        else:
            raise AssertionError(f"no kubelet would be this one: {volume}")
        return path

    def _host_path(self, path: Path, kind: str) -> Path:
        there = self.host / path.relative_to("/")
        if kind == "DirectoryOrCreate":
            there.mkdir(parents=True, exist_ok=True)
        elif kind == "FileOrCreate":
            there.parent.mkdir(parents=True, exist_ok=True)
            there.touch()
        assert there.exists(), f"{path} is not on {self.node}"
        return there

    def _projected(self, source: Document, kube_namespace: str, pod: Document) -> Mapping[str, str]:
        if token := source.get("serviceAccountToken"):
            where = f"/api/v1/namespaces/{kube_namespace}/serviceaccounts/{pod['serviceAccountName']}/token"
            request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
            return {token["path"]: self._kube.call("POST", where, request)["status"]["token"]}
        if "configMap" in source:
            assert source["configMap"]["name"] == "kube-root-ca.crt"
            return {"ca.crt": self._kube.ca_file.read_text()}  # the controller manager's work
        return {item["path"]: kube_namespace for item in source["downwardAPI"]["items"]}


class Pod:
    """Its containers, each a process; all of them are gone when the block ends."""

    def __init__(
        self,
        namespace: NetworkNamespace,
        directory: Path,
        pod: Document,
        volumes: dict[str, Path],
        facts: dict[str, str],
    ) -> None:
        self.directory = directory
        self.volumes = volumes
        self._namespace = namespace
        self._spec = pod
        self._facts = facts
        self._processes = {c["name"]: self._start(c) for c in pod["containers"]}

    def __enter__(self) -> "Pod":
        return self

    def __exit__(self, *exception: object) -> None:
        self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM) -> None:
        """All of its containers."""
        for name in list(self._processes):
            self.stop(name, number)

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def freeze(self, name: str) -> None:
        """A container hangs."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def stop(self, name: str, number: int = signal.SIGTERM) -> int:
        """Its exit code."""
        process = self._processes.pop(name)
        if process.poll() is None:
            process.send_signal(number)
        return process.wait(PATIENCE)

    def memory(self) -> dict[str, int]:
        """KiB that only the container has, by its name: its private pages, with those of its children."""
        return {name: sum(map(_private, _family(process.pid))) for name, process in self._processes.items()}

    def restart(self, name: str) -> None:
        """As the kubelet does with a container that has ended."""
        self._processes[name] = self._start(container_of(self._spec, name))

    async def until_ready(self, within: float = 2 * PATIENCE) -> None:
        """Until every probe of every container succeeds."""
        for container in self._spec["containers"]:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                await self.until(container["name"], probe, 200, within)

    async def until(self, name: str, probe: str, status: int, within: float = PATIENCE) -> None:
        """Until this probe is answered with this status."""
        get = container_of(self._spec, name)[probe]["httpGet"]
        seen, code = await eventually(
            lambda: (self._ask(get), self._processes[name].poll()),
            lambda seen: seen[0] == status or seen[1] is not None,
            within,
        )
        assert seen == status, f"{probe} of {name} is {seen}, it ended with {code}:\n{self.log(name)}"

    def _ask(self, get: Document) -> int:
        """0: nobody answers."""
        with self._namespace.inside():
            connection = http.client.HTTPConnection(
                get.get("host", self._facts["status.hostIP"]), get["port"], timeout=5
            )
            try:
                connection.request("GET", get["path"])
                return connection.getresponse().status
            except OSError:
                return 0
            finally:
                connection.close()

    def look(self, container: Document) -> tuple[int, str]:
        """Runs `flannelette` in an ephemeral container: its exit code, and what it prints."""
        program, *arguments = container["command"]
        assert program == "flannelette"
        code = self._run({**container, "args": arguments}, "ctl", _CTL_USER).wait(PATIENCE)
        return code, self.log(container["name"])

    def execute(self, name: str, *command: str) -> tuple[int, str]:
        """Runs `flannelette` in a container that runs, as `kubectl exec` does: its exit code, and what it prints."""
        program, *arguments = command
        assert program == "flannelette"
        container = {**container_of(self._spec, name), "name": f"{name}-exec", "args": arguments}
        return self._run(container, "ctl").wait(PATIENCE), self.log(container["name"])

    def _start(self, container: Document) -> "subprocess.Popen[bytes]":
        return self._run(container, container["name"])

    def _run(self, container: Document, module: str, image: int = 0) -> "subprocess.Popen[bytes]":
        name = container["name"]
        environment = self._environment(container)
        arguments = [_expand(argument, environment) for argument in container.get("args", ())]
        mounts = [
            Mount(self.volumes[m["name"]], m["mountPath"], m.get("readOnly", False))
            for m in container.get("volumeMounts", ())
        ]
        return start(
            self._namespace,
            self.directory / f"root-{name}",
            ["python", "-m", _MODULES[module], *arguments],
            mounts,
            Rights.of(container, self._spec, image),
            ENVIRONMENT | environment,
            self.directory / f"{name}.log",
        )

    def _environment(self, container: Document) -> dict[str, str]:
        known = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
        for variable in container.get("env", ()):
            source: Any = variable.get("valueFrom")
            known[variable["name"]] = (
                self._facts[source["fieldRef"]["fieldPath"]] if source else _expand(variable["value"], known)
            )
        return known


def _write(directory: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (directory / name).write_text(text)


def _expand(argument: str, environment: Mapping[str, str]) -> str:
    """`$(NAME)`, as Kubernetes does it: an unknown one stays."""
    return re.sub(r"\$\((\w+)\)", lambda match: environment.get(match[1], match[0]), argument)


def _family(pid: int) -> Iterator[int]:
    """A process and its descendants, but for those that end meanwhile."""
    yield pid
    with suppress(ProcessLookupError, FileNotFoundError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _family(int(child))


def _private(pid: int) -> int:
    """KiB; none, if the process has ended."""
    with suppress(ProcessLookupError, FileNotFoundError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return 0


def find_plugins() -> Path:
    """The directory of the CNI plugins that `make test` built."""
    find_tool("cnitool")
    return CACHE / "cni"
