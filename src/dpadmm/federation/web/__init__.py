"""The web application of a server or site: joining, status page, health and metrics."""

from importlib.util import find_spec

from dpadmm.federation.protocol import MissingPackagesError

if not all(map(find_spec, ("starlette", "uvicorn", "prometheus_client"))):
    raise MissingPackagesError
