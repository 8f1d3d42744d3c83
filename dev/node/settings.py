"""The settings of a node's programs, and where it keeps what."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dev.node import programs
from dev.node.image import PAUSE

BRIDGE, ADDRESS = "lake0", "10.244.0.1"
_PODS, _FIRST_POD, _SERVICES, _API = "10.244.0.0/24", "10.244.0.10", "10.245.0.0/24", "10.245.0.1"
# Its images stay unpacked from one start to the next.
CONTAINERS = programs.CACHE / "containerd"


@dataclass(frozen=True)
class Ports:
    """The ports of a node's programs."""

    api: int
    etcd: int
    peers: int
    controllers: int
    scheduler: int
    kubelet: int
    health: int
    dns: int


@dataclass(frozen=True)
class Plan:
    """A node in a folder."""

    folder: Path
    ports: Ports

    @property
    def url(self) -> str:
        """The API server's address, for pods as well."""
        return f"https://{ADDRESS}:{self.ports.api}"

    @property
    def socket(self) -> Path:
        """Where containerd listens."""
        return self.folder / "containerd.sock"

    @property
    def keys(self) -> Path:
        """The folder of the keys."""
        return self.folder / "keys"

    @property
    def _volume_plugins(self) -> str:
        return f"{self.folder}/volume-plugins"

    def addresses(self) -> list[str]:
        """Return all by which the API server is known."""
        names = ("kubernetes", *(f"kubernetes.default{rest}" for rest in ("", ".svc", ".svc.cluster.local")))
        return [f"IP:{ADDRESS}", "IP:127.0.0.1", f"IP:{_API}", *(f"DNS:{name}" for name in names)]

    def write(self) -> None:
        """Write the files that the programs read."""
        (self.folder / "cni").mkdir(exist_ok=True)
        (self.folder / "cni/10-lake.conflist").write_text(json.dumps(self._network()))
        (self.folder / "containerd.toml").write_text(self._containerd())
        (self.folder / "kubelet.yaml").write_text(json.dumps(self._kubelet()))
        (self.folder / "Corefile").write_text(
            f".:53 {{\n  bind {ADDRESS}\n  errors\n  ready 127.0.0.1:{self.ports.dns}\n"
            f"  kubernetes cluster.local {{\n    kubeconfig {self.keys}/dns.kubeconfig c\n  }}\n}}\n"
        )

    def commands(self) -> dict[str, list[str]]:
        """Return the command of each program, in the order of their start."""
        p, keys, own = self.ports, self.keys, str(programs.BIN)
        etcd, peers = f"http://127.0.0.1:{p.etcd}", f"http://127.0.0.1:{p.peers}"
        quiet = ["--leader-elect=false", f"--cert-dir={self.folder}/made"]
        return {
            "containerd": [programs.debian("containerd"), "--config", f"{self.folder}/containerd.toml"],
            "etcd": [
                *(programs.debian("etcd"), f"--data-dir={self.folder}/etcd", "--unsafe-no-fsync", "--log-level=warn"),
                *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}", f"--listen-peer-urls={peers}"),
                *(f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}"),
            ],
            "api-server": [
                *(f"{own}/kube-apiserver", f"--etcd-servers={etcd}", f"--secure-port={p.api}", "--v=1"),
                *(f"--bind-address={ADDRESS}", f"--advertise-address={ADDRESS}"),
                *(f"--tls-cert-file={keys}/apiserver.crt", f"--tls-private-key-file={keys}/apiserver.key"),
                *(f"--client-ca-file={keys}/ca.crt", f"--cert-dir={self.folder}/made"),
                f"--kubelet-client-certificate={keys}/kubelet-client.crt",
                *(f"--kubelet-client-key={keys}/kubelet-client.key", "--kubelet-preferred-address-types=InternalIP"),
                *(f"--service-account-key-file={keys}/sa.key", f"--service-account-signing-key-file={keys}/sa.key"),
                "--service-account-issuer=https://kubernetes.default.svc",
                # Debian's etcd does not report the progress of a watch, which a list by watching waits for.
                "--feature-gates=WatchList=false",
                *(f"--service-cluster-ip-range={_SERVICES}", "--authorization-mode=Node,RBAC"),
                *(f"--token-auth-file={keys}/tokens.csv", "--allow-privileged=true"),
            ],
            "controllers": [
                *(f"{own}/kube-controller-manager", f"--kubeconfig={keys}/controllers.kubeconfig", *quiet, "--v=1"),
                *("--bind-address=127.0.0.1", f"--secure-port={p.controllers}", f"--root-ca-file={keys}/ca.crt"),
                *(f"--service-account-private-key-file={keys}/sa.key", "--allocate-node-cidrs=false"),
                f"--flex-volume-plugin-dir={self._volume_plugins}",
                # A node that is away is noticed soon.
                *("--node-monitor-grace-period=16s", "--node-monitor-period=2s"),
            ],
            "scheduler": [
                *(f"{own}/kube-scheduler", f"--kubeconfig={keys}/scheduler.kubeconfig", *quiet, "--v=1"),
                *("--bind-address=127.0.0.1", f"--secure-port={p.scheduler}"),
            ],
            "kubelet": [
                *(f"{own}/kubelet", f"--config={self.folder}/kubelet.yaml", f"--kubeconfig={keys}/node.kubeconfig"),
                *(f"--root-dir={self.folder}/kubelet", f"--cert-dir={self.folder}/made", "--hostname-override=node"),
                *(f"--node-ip={ADDRESS}", "--v=1"),
            ],
            "dns": [programs.dns(), "-conf", f"{self.folder}/Corefile"],
        }

    def _network(self) -> dict[str, object]:
        # Without a way out: pods need the broker, the API server and each other.
        ranges = [[{"subnet": _PODS, "rangeStart": _FIRST_POD, "gateway": ADDRESS}]]
        ipam = {"type": "host-local", "dataDir": f"{self.folder}/addresses", "ranges": ranges}
        bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "hairpinMode": True}
        bridge["ipam"] = {**ipam, "routes": [{"dst": "0.0.0.0/0"}]}
        return {"cniVersion": "0.4.0", "name": "lake", "plugins": [bridge]}

    def _containerd(self) -> str:
        cri = '[plugins."io.containerd.grpc.v1.cri"'
        return "\n".join(
            [
                "version = 2",
                f'root = "{CONTAINERS}"',
                f'state = "{self.folder}/containerd"',
                '[plugins."io.containerd.internal.v1.opt"]',
                f'  path = "{self.folder}/opt"',
                "[grpc]",
                f'  address = "{self.socket}"',
                f"{cri}]",
                # Without CAP_SYS_RESOURCE, as in a container, runc may not lower oom_score_adj.
                "  restrict_oom_score_adj = true",
                f'  sandbox_image = "{PAUSE}"',
                '  snapshotter = "overlayfs"',
                f"{cri}.cni]",
                f'  bin_dir = "{programs.DEBIAN}/usr/lib/cni"',
                f'  conf_dir = "{self.folder}/cni"',
                "",
            ]
        )

    def _kubelet(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": ADDRESS,
            "port": self.ports.kubelet,
            "healthzPort": self.ports.health,
            "healthzBindAddress": "127.0.0.1",
            "readOnlyPort": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{self.keys}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "clusterDNS": [ADDRESS],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "podLogsDir": f"{self.folder}/pod-logs",
            "volumePluginDir": self._volume_plugins,
            # Images are brought by hand: none may be cleared away.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
            "nodeStatusUpdateFrequency": "4s",
            "maxPods": 30,
        }
