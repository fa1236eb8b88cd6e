"""Configurations of nginx and Caddy in place of fedkin's gate, with the same rule: one path, signed heads only.

Neither can check the signature of Flower's nodes. Both can query a server on this machine (`headchecks`) with the head
of a request before they read its body.
"""

from __future__ import annotations

_NGINX = """\
# /etc/nginx/conf.d/fedkin.conf: passes the calls of nodes to the SuperLink, refuses all else
limit_conn_zone $http_flwr_public_key zone=fedkin:1m;
server {
    listen @PORT@ ssl;
    server_name @HOST@;
    ssl_certificate     @CERTIFICATE@;
    ssl_certificate_key @KEY@;
    ssl_protocols TLSv1.2 TLSv1.3;
    client_max_body_size @BODY@m;
    merge_slashes off;
    client_header_timeout 15s;
    client_body_timeout 60s;
    limit_conn fedkin 32;

    # $request_uri is the address as it was sent, before nginx takes %2e and .. apart
    if ($request_uri !~ "^/v1/fleet(/[A-Za-z0-9_-]+)+$") { return 403; }
    if ($request_method != POST) { return 403; }

    # asked with the head of each request, before its body is read: has a registered node signed it?
    location = /fedkin-check {
        internal;
        proxy_pass http://127.0.0.1:@CHECK@;
        proxy_pass_request_body off;
        proxy_set_header Content-Length "";
    }
    location /v1/fleet/ {
        auth_request /fedkin-check;
        proxy_pass https://127.0.0.1:@INNER@;
        proxy_ssl_trusted_certificate @AUTHORITY@;
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header X-Forwarded-For $remote_addr;
        proxy_set_header X-Forwarded-Proto "";
        proxy_set_header Forwarded "";
        proxy_request_buffering off;
        proxy_buffering off;
        proxy_read_timeout 120s;
    }
    location / { return 403; }
}
"""

_CADDY = """\
# /etc/caddy/Caddyfile: passes the calls of nodes to the SuperLink, refuses all else
{
    # certificate and key are below: without this Caddy also listens on port 80
    auto_https off
    servers {
        # what nodes speak
        protocols h1
        timeouts {
            read_header 15s
            idle 90s
        }
    }
}
# no host: the rule is the same for every name
https://:@PORT@ {
    tls @CERTIFICATE@ @KEY@
    request_body {
        max_size @BODY@MB
    }
    # {http.request.orig_uri} is the address as it was sent
    @fleet `{http.request.orig_uri}.matches("^/v1/fleet(/[A-Za-z0-9_-]+)+$") && {http.request.method} == "POST"`
    handle @fleet {
        # asked with the head of each request, before its body is read: has a registered node signed it?
        forward_auth 127.0.0.1:@CHECK@ {
            uri /
        }
        reverse_proxy https://127.0.0.1:@INNER@ {
            flush_interval -1
            header_up -Forwarded
            transport http {
                tls_server_name localhost
                # from Caddy 2.8 on: tls_trust_pool file @AUTHORITY@
                tls_trusted_ca_certs @AUTHORITY@
            }
        }
    }
    handle {
        respond 403
    }
}
"""


def nginx(
    host: str, port: int, inner: int, authority: str, certificate: str, key: str, megabytes: int = 8, check: int = 8001
) -> str:
    """Return a server block for nginx.

    Args:
        host: name by which nodes reach the server.
        port: public port.
        inner: port of the SuperLink on this machine.
        authority: path of the certificate of the authority that signed the SuperLink's certificate.
        certificate: path of the public certificate: the authority's, or any that the nodes trust.
        key: path of the certificate's key.
        megabytes: maximum body of a request in megabytes.
        check: port of `headchecks` on this machine.
    """
    return _filled(_NGINX, host, port, inner, authority, certificate, key, megabytes, check)


def caddy(
    host: str, port: int, inner: int, authority: str, certificate: str, key: str, megabytes: int = 8, check: int = 8001
) -> str:
    """Return a site block for Caddy 2.6 or newer; arguments as for `nginx`."""
    return _filled(_CADDY, host, port, inner, authority, certificate, key, megabytes, check)


def _filled(
    text: str, host: str, port: int, inner: int, authority: str, certificate: str, key: str, mb: int, check: int
) -> str:
    values = {"HOST": host, "PORT": port, "INNER": inner, "AUTHORITY": authority, "CERTIFICATE": certificate}
    for name, value in {**values, "KEY": key, "BODY": mb, "CHECK": check}.items():
        text = text.replace(f"@{name}@", str(value))
    return text
