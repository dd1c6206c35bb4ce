"""Fetching images from URLs that clients name: public addresses only, few redirects, limits of size and time."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from ..errors import ImageError

MAX_BYTES = 20 << 20
MAX_REDIRECTS = 3
MAX_SECONDS = 10.0
MAX_REQUEST_SECONDS = 30.0
CHUNK = 1 << 16
TRANSLATED = ip_network("::/96"), ip_network("64:ff9b::/96")  # of IPv4 addresses: compatible ones, and those of NAT64
_REDIRECTS = (301, 302, 303, 307, 308)


class FetchTime:
    """The time that all images of a request may take together."""

    def __init__(self) -> None:
        self._seconds_left = MAX_REQUEST_SECONDS

    def fetch(self, url: str) -> bytes:
        start = time.monotonic()
        try:
            return fetch_image(url, min(self._seconds_left, MAX_SECONDS))
        finally:
            self._seconds_left -= time.monotonic() - start


def fetch_image(url: str, seconds: float = MAX_SECONDS) -> bytes:
    """The bytes at a URL. Every address that is connected to is a public one, those of redirects too.

    Args:
        url: Begins with http:// or https://.
        seconds: For all of it.
    """
    end = time.monotonic() + seconds
    for _ in range(MAX_REDIRECTS + 1):
        parts = check_url(url)
        found = _fetch_once(parts, end)
        if isinstance(found, bytes):
            return found
        url = urljoin(url, found)
    raise ImageError(f"the image's URL redirects more than {MAX_REDIRECTS} times")


def check_url(url: str) -> SplitResult:
    """
    >>> check_url("file:///etc/passwd")
    Traceback (most recent call last):
        ...
    fewbit.errors.ImageError: an image's URL begins with http://, https:// or data:, got 'file:///etc/passwd'
    """
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        raise ImageError(f"this is no valid URL: {url[:80]!r}") from None
    if parts.scheme not in ("http", "https"):
        raise ImageError(f"an image's URL begins with http://, https:// or data:, got {url[:80]!r}")
    if not has_host or parts.username is not None or any(char <= " " or char == "\x7f" for char in url):
        raise ImageError(f"this is no valid URL of an image: {url[:80]!r}")
    return parts


def public_address(host: str, port: int) -> str:
    """The address of a host, if all that its name stands for are public ones."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ImageError(f"the host of the image's URL is not known: {host[:80]}") from None
    addresses = [str(one[4][0]) for one in found]
    if not addresses or not all(map(is_public, addresses)):
        raise ImageError(f"the image's URL leads to an address that is not public: {host[:80]}")
    return addresses[0]


def is_public(address: str) -> bool:
    """
    >>> is_public("127.0.0.1"), is_public("169.254.169.254"), is_public("::ffff:10.0.0.1"), is_public("1.1.1.1")
    (False, False, False, True)
    """
    ip = _inner(ip_address(address.partition("%")[0]))
    return ip.is_global and not ip.is_multicast


def _inner(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address leads to, if it does."""
    if isinstance(ip, IPv4Address):
        return ip
    if any(ip in network for network in TRANSLATED):
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or ip


def _fetch_once(parts: SplitResult, end: float) -> bytes | str:
    """The body, or where the URL redirects to."""
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe="%/:=&?~#+!$,;'@()*[]")
    try:
        with closing(_connect(parts.scheme, host, port, end)) as connection, _ended(connection.sock, end):
            if isinstance(connection.sock, ssl.SSLSocket):
                connection.sock.do_handshake()
            headers = {"User-Agent": "fewbit", "Accept": "image/*", "Accept-Encoding": "identity"}
            connection.request("GET", target, headers=headers)
            response = connection.getresponse()
            if response.status in _REDIRECTS and (place := response.headers.get("Location")):
                return place
            if response.status != 200:
                raise ImageError(f"the image's URL answers with status {response.status}")
            return _read(connection, response, end)
    except ImageError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        _left(end)
        raise ImageError(f"the image could not be fetched: {type(error).__name__}") from None


def _connect(scheme: str, host: str, port: int, end: float) -> http.client.HTTPConnection:
    """A connection to the address that was checked: a name that means another one a moment later changes nothing."""
    connection = http.client.HTTPConnection(host, port, timeout=_left(end))
    plain = socket.create_connection((public_address(host, port), port), timeout=_left(end))
    tls = None if scheme == "http" else ssl.create_default_context()
    if tls is None:
        connection.sock = plain
    else:
        connection.sock = tls.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
    return connection


@contextmanager
def _ended(sock: socket.socket | None, end: float) -> Iterator[None]:
    """Shuts a connection down when its time is over: one that sends a byte now and then never runs into a timeout."""
    timer = threading.Timer(_left(end), _shut_down, [sock])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _shut_down(sock: socket.socket | None) -> None:
    with suppress(OSError):  # it is closed already
        if sock is not None:
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not that of TLS, which others may be reading from


def _read(connection: http.client.HTTPConnection, response: http.client.HTTPResponse, end: float) -> bytes:
    found = bytearray()
    while True:
        if connection.sock is not None:
            connection.sock.settimeout(_left(end))
        part = response.read1(CHUNK)
        _left(end)
        if not part:
            return bytes(found)
        found += part
        if len(found) > MAX_BYTES:
            raise ImageError(f"the image at the URL is larger than {MAX_BYTES >> 20} MiB")


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        seconds = f"{MAX_SECONDS:.0f} seconds, or those of a request longer than {MAX_REQUEST_SECONDS:.0f}"
        raise ImageError(f"the image's URL took longer than {seconds}")
    return left
