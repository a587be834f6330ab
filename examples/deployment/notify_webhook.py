#!/usr/bin/env python3
"""Post an event of dpadmm to a web address: notify_webhook.py SETTINGS, with the event as JSON on standard input.

SETTINGS is an INI file that only the user of the service can read:

    [webhook]
    url = https://chat.example.org/hooks/...
    # sent as "Authorization: Bearer ...", if there is one
    token = ...

The body is the event with all its fields. ``text`` is one of them, which many chat services display.
"""

import configparser
import json
import sys
import urllib.request

TIMEOUT = 30.0


def main() -> None:
    settings = configparser.ConfigParser(interpolation=None)
    with open(sys.argv[1], encoding="utf-8") as file:
        settings.read_file(file)
    webhook, event = settings["webhook"], json.load(sys.stdin)
    headers = {"Content-Type": "application/json"}
    if "token" in webhook:
        headers["Authorization"] = f"Bearer {webhook['token']}"
    request = urllib.request.Request(webhook["url"], json.dumps(event).encode(), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT):
        pass


if __name__ == "__main__":
    main()
