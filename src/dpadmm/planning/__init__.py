"""Plan a study: costs, forecast and recommendation, before any private row is read."""
