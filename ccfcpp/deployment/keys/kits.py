"""Kits: a zip file for each site, with everything it needs to take part in a federation."""

import hashlib
import io
import zipfile
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.keys.certificates import client_pem, hosts_of, new_key, read_certificate
from ccfcpp.deployment.keys.files import (
    PRIVATE,
    PUBLIC,
    ROSTER,
    check_client_name,
    public_path,
    write_new,
)
from ccfcpp.deployment.keys.roster import public_file

_RULES = """\
# What this client may send, whatever the server asks for. Take the # away where a line should hold.
# allow: [counts]        # also names of classes, and how many photos of each are in which cluster
# smallest_count: 10     # no centre and no sum over fewer photos; 5 if not given
# budget: 10             # refuse what would take all runs together beyond this epsilon
##
## Sums protect photos only as long as they are few: noise alone bounds what many of them tell. The
## next four lines together are what a hospital could defend. They cost quality: clusters of MNIST
## fall from 0.77 to 0.63 in NMI.
# only_secure_sums: true # refuse a run in which the server sees what this client sends
# honest: 5              # and one in which it could learn the sum of fewer honest clients
# colluders: 1           # also if so many other clients help it
# only_private: 8        # refuse a run without differential privacy, or with a larger epsilon
"""
_README = """\
TAKING PART AS {name}

Several sites group their photos together. The photos stay where they are.

What is in this folder
  {name}.key     the private key of this site, sealed under a passphrase that you were told
  ca.crt         by which this site recognises the server
  {name}.rules   what this site may send; change it as you like
  README.txt     this page

What to install
  Python 3.11 or later, and then, in this folder:
    python3 -m venv env
{install}

What to run
  Look at your photos first. This sends nothing:
    env/bin/ccfcpp inspect PHOTOS
  Then take part. PHOTOS is the folder of your photos; the passphrase is asked for:
    env/bin/ccfcpp join --server {server} --key {name}.key --authority ca.crt --data PHOTOS
  It says where it stands, and keeps running until Ctrl-C. Afterwards:
    env/bin/ccfcpp report {name}.state     a page of what was found in your photos
    env/bin/ccfcpp predict {name}.state NEW     the cluster of each photo in the folder NEW
    env/bin/ccfcpp audit {name}.state      what the server asked for, and what was sent

What leaves this machine
  Numbers for training: gradients and sums over several photos, or a model. Before that, how many
  photos there are, how large they are, and how many files cannot be read; of a table the names of
  its columns, which the other sites get too. Each answer is written into {name}.state/audit.jsonl
  before it is sent.

What does not leave
  Photos, names of files and folders, and the cluster of a photo, unless {name}.rules allows it,
  which refuses the rest, whatever the server asks for. But numbers tell something of the photos
  that they were computed from: whoever runs the server could try to compute some photos back.
  With only_secure_sums it sees sums over several sites alone; with only_private there is noise
  in them, which is the one protection that holds however much is asked for.

The private key is as good as a signature. Who has it and the passphrase can pretend to be this
site. If it is lost, tell whoever gave you this kit, who takes it off the roster.
"""


_ASK = """\
    env/bin/pip install 'FILE[flower,privacy]'
  FILE is the package, ccfcpp-….whl, from whoever gave you this kit; no index has it."""
_INSTALL = """\
    env/bin/pip install -r requirements.txt
  The number (SHA-256) of {wheel} is
  {digest}"""


def make_kit(
    folder: Path,
    name: str,
    server: str,
    out: Path,
    passphrase: str,
    wheel: Path | None = None,
    constraints: Path | None = None,
) -> Path:
    """Create a client's key, put its public key on the roster, and write a kit for its site.

    The kit, a zip file, has all that the site needs; only there is the private key, encrypted.

    Args:
        folder: Folder of the authority's certificate and of the roster; if the server's certificate
            is there, too, ``server`` is checked against it.
        name: The client's name.
        server: Host and port of the server, as ``HOST:PORT``.
        out: Path of the kit, a zip file that must not exist.
        passphrase: Passphrase of the key. It must not be sent together with the kit.
        wheel: Wheel of this package, to be included; None: the site gets it in another way.
        constraints: File with a line ``name==version --hash=sha256:…`` for each dependency.

    Returns:
        The client's public key file in the roster.

    Raises:
        UsageError: The name is on the roster already, the server's certificate is for other hosts,
            or a file cannot be used.
    """
    check_client_name(name)
    authority, certificate = folder / "ca.crt", folder / "server.crt"
    read_certificate(authority)
    host = server.rpartition(":")[0].strip("[]")
    if certificate.is_file() and host not in (hosts := hosts_of(read_certificate(certificate))):
        raise UsageError(
            f"the server's certificate is not for {host}: give --server as one of "
            f"{', '.join(hosts)}, or make one with ccfcpp keys server {host}"
        )
    public = public_path(folder / ROSTER, name)
    if public.exists():
        raise UsageError(
            f"{name} is on the roster {public.parent} already: choose another name, or take it off "
            f"first with ccfcpp keys revoke {name}"
        )
    package, install = _package_files(wheel, constraints)
    key = new_key()
    files = {
        f"{name}.key": client_pem(key, passphrase),
        "ca.crt": authority.read_bytes(),
        f"{name}.rules": _RULES.encode(),
        "README.txt": _README.format(name=name, server=server, install=install).encode(),
        **package,
    }
    content = {public: (public_file(name, key.public_key()), PUBLIC)}
    write_new(folder, {**content, out: (_make_zip(name, files), PRIVATE)})
    return public


def _package_files(wheel: Path | None, constraints: Path | None) -> tuple[dict[str, bytes], str]:
    """Return the kit's files for installing the package, by name, and the install commands."""
    if wheel is None:
        if constraints is not None:
            raise UsageError("--constraints is for a kit with the package: give --wheel, too")
        return {}, _ASK
    if not (wheel.name.startswith("ccfcpp-") and zipfile.is_zipfile(wheel)):
        raise UsageError(f"{wheel} is no wheel of ccfcpp: make one with pip wheel --no-deps .")
    content = wheel.read_bytes()
    digest, own = hashlib.sha256(content).hexdigest(), f"./{wheel.name}[flower,privacy]"
    lines = constraints.read_text().splitlines() if constraints is not None else []
    for line in lines:
        if "==" not in line or "--hash=sha256:" not in line:
            raise UsageError(
                f"{constraints}: {line[:60]!r} locks nothing: give lines name==version "
                "--hash=sha256:…, as python -m scripts.constraints writes them"
            )
    # If one requirement has a hash, pip requires hashes of all.
    lines = [f"{own} --hash=sha256:{digest}" if lines else own, *lines]
    files = {wheel.name: content, "requirements.txt": "\n".join(lines).encode()}
    return files, _INSTALL.format(digest=digest, wheel=wheel.name)


def _make_zip(folder: str, files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(f"{folder}/{name}", (1980, 1, 1, 0, 0, 0))
            mode = PRIVATE if name.endswith(".key") else PUBLIC
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
