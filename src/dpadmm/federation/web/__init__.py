"""The web application of a server or site: joining, status page, health and metrics."""
