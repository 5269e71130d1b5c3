"""A node: a host of the lab's network with a root directory, cgroups and processes of its own."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from string import Template
from typing import Final

from lab import topology
from lab.build import CommandFailed, carry_out
from lab.kubernetes import parts
from lab.kubernetes.cgroups import make_groups, remove_groups
from lab.kubernetes.options import POD_NETWORKS, SERVICE_NETWORKS, Options
from lab.kubernetes.parts import HERE, ROOT
from lab.topology import OUTSIDE_ADDRESS, Batch, Host
from lab.vm import PATIENCE

_TOKEN: Final = "flanne.0123456789labnow"  # noqa: S105 - nobody outside reaches the API server
_BOOT_SECONDS: Final = 60.0 * PATIENCE
_PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENTER: Final = ("--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--root", "--wdns=/")
_FORWARDING: Final = {4: Path("/proc/sys/net/ipv4/ip_forward"), 6: Path("/proc/sys/net/ipv6/conf/all/forwarding")}


class Node:
    """One node. `place` has its files, and keeps them over a power failure."""

    def __init__(self, host: Host, place: Path, options: Options) -> None:
        self.host = host
        self.name = host.name
        self.place = place
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def furnish(self, hosts: tuple[Host, ...], images: Path) -> None:
        """Writes its files: settings, and containerd's directory with the images, shared with all nodes."""
        etc = self.place / "upper" / "etc"
        for path in (
            "work",
            "root",
            "kubelet",
            "upper/usr/local/sbin",
            "upper/etc/containerd",
            "upper/etc/kubeadm/patches",
        ):
            (self.place / path).mkdir(parents=True)
        _copy_containerd(images, self.place / "containerd")
        shutil.copy2(HERE / "node.sh", self.place / "upper/usr/local/sbin")
        shutil.copy2(HERE / "containerd.toml", etc / "containerd" / "config.toml")
        shutil.copy2(HERE / "etcd.yaml", etc / "kubeadm/patches/etcd+strategic.yaml")
        if self._options.firewall == "iptables-legacy":
            choose_legacy_iptables(etc / "alternatives")
        (etc / "hostname").write_text(f"{self.name}\n")
        (etc / "machine-id").write_text(f"{self.host.number:032x}\n")
        versions = self._options.versions
        names = "".join(f"{host.address_of(version)} {host.name}\n" for host in hosts for version in versions)
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        (etc / "resolv.conf").write_text(f"nameserver {OUTSIDE_ADDRESS}\n")  # nobody answers there
        words = {
            "name": self.name,
            "address": str(self.host.address_of(versions[0])),
            "addresses": ",".join(str(self.host.address_of(version)) for version in versions),
            "server": with_port(hosts[0].address_of(versions[0]), 6443),
            "pods": ",".join(POD_NETWORKS[version] for version in versions),
            "services": ",".join(SERVICE_NETWORKS[version] for version in versions),
            "token": _TOKEN,
            "version": parts.version(),
            "etcd": parts.etcd_version(),
            "proxy": self._options.proxy,
        }
        documents = (HERE / "kubeadm.yaml").read_text().split("\n---\n")
        for name, chosen in (("init", documents[:-1]), ("join", documents[-1:])):
            text = Template("\n---\n".join(chosen)).substitute(words)
            (etc / "kubeadm" / f"{name}.yaml").write_text(text)

    async def boot(self) -> None:
        """Starts it; returns when its containerd answers. Raises CommandFailed."""
        groups = list(make_groups(self.name))
        (self.place / "cgroups").write_text("".join(f"{what} {directory}\n" for what, directory in groups))
        process = self._process = self._start()
        with suppress(TimeoutError):
            async with asyncio.timeout(_BOOT_SECONDS):
                while process.poll() is None:
                    with suppress(CommandFailed):
                        await self.run("ctr", "version")
                        return
                    await asyncio.sleep(0.2)
        raise CommandFailed(f"node {self.name} does not boot: {(self.place / 'boot.log').read_text().strip()[-500:]}")

    def _start(self) -> subprocess.Popen[bytes]:
        with self.host.namespace.inside():
            for version in self._options.versions:
                _FORWARDING[version].write_text("1")
        unshare = ("unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child")
        network = f"--net={self.host.namespace.path}"
        script = ("sh", HERE / "node.sh", "enter", self.place, ROOT)
        with (self.place / "boot.log").open("ab") as log:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "nsenter", network, *unshare, *script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us alone
            )

    def fail(self) -> None:
        """Ends everything in the node at once, as a power failure does."""
        if not self._process:
            return
        try:
            os.kill(self.process_id, signal.SIGKILL)  # it is the last one of its namespace to be gone
        except CommandFailed:
            self._process.kill()
        self._process.wait()
        self._process = None
        remove_groups(self.name)  # a boot finds none; the kubelet would spend three seconds on each old one

    async def plug_again(self) -> None:
        """Gives it a new network namespace, as a boot does; the MAC of a machine stays."""
        (device,) = json.loads(await run("ip", "-n", self.host.namespace.name, "-json", "link", "show", "eth0"))
        await self.unplug()
        await self.plug(device["address"])

    async def unplug(self) -> None:
        """Removes its network namespace."""
        await carry_out([Batch("", (f"link delete {self.name}", f"netns delete {self.host.namespace.name}"))])

    async def plug(self, mac: str = "") -> None:
        """Gives it a network namespace with a wire to the others."""
        name, of_host = self.name, self.host.namespace.name
        await carry_out(
            (
                Batch(
                    "",
                    (
                        f"netns add {of_host}",
                        f"link add {name} type veth peer name eth0 {f'address {mac}' if mac else ''} netns {of_host}",
                        f"link set {name} master underlay up",
                    ),
                ),
                *topology.addresses(self.host, self._options.versions),
            )
        )

    @property
    def process_id(self) -> int:
        """The process id of the node's first process. Raises CommandFailed if it does not run."""
        with suppress(OSError, IndexError):
            if self._process:
                pid = self._process.pid
                return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        raise CommandFailed(f"node {self.name} does not run")

    def command(self, *words: str) -> tuple[str, ...]:
        """The command that runs another one on the node."""
        environment = ("env", "-i", _PATH, "HOME=/root", "TERM=dumb")
        return ("nsenter", "--target", str(self.process_id), *_ENTER, *environment, *words)

    async def run(self, *words: str, file: Path | None = None) -> str:
        """What a command on the node prints; with a file as its input. Raises CommandFailed."""
        return await run(*self.command(*words), file=file)

    async def name_pod(self, container: str) -> None:
        """Gives the network namespace of a container's pod the name that the lab knows it by."""
        words = next(
            line.split()
            for line in (await self.run("ctr", "-n", "k8s.io", "tasks", "list")).splitlines()
            if line.startswith(container)
        )
        source = f"/proc/{self.process_id}/root/proc/{words[1]}/ns/net"
        path = str(self.host.pod.path)
        with suppress(CommandFailed):  # at first it is no mount
            await run("umount", "-l", path)
        await run("touch", path)
        await run("mount", "--bind", source, path)


def choose_legacy_iptables(alternatives: Path) -> None:
    """Writes what update-alternatives would."""
    alternatives.mkdir()
    for name in ("iptables", "ip6tables"):
        for kind in ("", "-save", "-restore"):
            (alternatives / f"{name}{kind}").symlink_to(f"/usr/sbin/{name}-legacy{kind}")


def with_port(address: topology.Address | str, port: int) -> str:
    """Both as one word; an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in str(address) else f"{address}:{port}"


async def run(*command: str, file: Path | None = None) -> str:
    """What a command prints; it does not hear Ctrl-C. Raises CommandFailed."""
    pipe = asyncio.subprocess.PIPE
    given = file.open("rb") if file else subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command, stdin=given, stdout=pipe, stderr=pipe, start_new_session=True
    )
    try:
        said, complaint = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        raise
    if process.returncode:
        words = " ".join(map(str, command))
        raise CommandFailed(f"{words}: {(complaint or said).decode(errors='replace').strip()[-1500:]}")
    return said.decode(errors="replace")


def _copy_containerd(source: Path, target: Path) -> None:
    """Layers are never written to, so they are shared; the databases are not."""
    subprocess.run(["cp", "-al", source, target], check=True, start_new_session=True)  # Ctrl-C is for us alone
    for path in target.rglob("*.db"):
        copy = path.with_suffix(".own")
        shutil.copy2(path, copy)
        copy.replace(path)
