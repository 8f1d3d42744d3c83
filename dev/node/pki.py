"""The keys of a node: an authority, the API server's certificate, tokens for everybody else."""

from __future__ import annotations

import json
import secrets
import subprocess
from pathlib import Path

# Who has a token: the name of its file, the user, the group.
_USERS = {
    "admin": ("admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    "node": ("system:node:node", "system:nodes"),
    "dns": ("system:dns", "system:masters"),
    "airflow": ("airflow", ""),
}


def make(folder: Path, url: str, addresses: list[str]) -> None:
    """Make all keys in a folder, and a kubeconfig for each user, `<name>.kubeconfig`.

    :param url: of the API server.
    :param addresses: all by which its certificate holds, such as `IP:10.0.0.1`.
    """
    folder.mkdir(mode=0o700)

    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    def sign(name: str, subject: str, extension: str) -> None:
        (folder / f"{name}.ext").write_text(extension)
        request = ("-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
        run("req", *request)
        by = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "3650", "-extfile", f"{name}.ext")
        run("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *by)

    authority = ("-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-days", "3650")
    run("req", *authority, "-subj", "/CN=node-ca")
    sign("apiserver", "/CN=kube-apiserver", f"subjectAltName={','.join(addresses)}")
    sign("kubelet-client", "/O=system:masters/CN=apiserver-kubelet-client", "extendedKeyUsage=clientAuth")
    run("genrsa", "-out", "sa.key", "2048")
    lines = []
    for name, (user, group) in _USERS.items():
        token = secrets.token_hex(16)
        lines.append(",".join([token, user, name, *([group] if group else [])]))
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority": str(folder / "ca.crt")}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        (folder / f"{name}.kubeconfig").write_text(json.dumps(config))
    (folder / "tokens.csv").write_text("\n".join([*lines, ""]))
