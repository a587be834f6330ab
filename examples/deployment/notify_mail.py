#!/usr/bin/env python3
"""Send an event of dpadmm by mail: notify_mail.py SETTINGS, with the event as JSON on standard input.

SETTINGS is an INI file that only the user of the service can read:

    [mail]
    host = smtp.example.org
    port = 587
    from = dpadmm@example.org
    to = owner@example.org, operator@example.org
    # starttls, tls or none
    security = starttls
    user = dpadmm
    password = ...
"""

import configparser
import json
import smtplib
import ssl
import sys
from email.message import EmailMessage

TIMEOUT = 30.0


def main() -> None:
    settings = configparser.ConfigParser(interpolation=None)
    with open(sys.argv[1], encoding="utf-8") as file:
        settings.read_file(file)
    mail, event = settings["mail"], json.load(sys.stdin)
    message = EmailMessage()
    message["From"], message["To"] = mail["from"], mail["to"]
    place = event["site"] or event["role"]
    message["Subject"] = " ".join(f"dpadmm {place}: {event['kind']} {event['code'] or ''}".split())
    message.set_content("".join(f"{name}: {value}\n" for name, value in event.items() if value is not None))
    security, context = mail.get("security", "starttls"), ssl.create_default_context()
    if security not in ("starttls", "tls", "none"):
        sys.exit(f"{sys.argv[1]}: security must be starttls, tls or none, not {security!r}")
    options = {"host": mail["host"], "port": mail.getint("port", 587), "timeout": TIMEOUT}
    with smtplib.SMTP_SSL(**options, context=context) if security == "tls" else smtplib.SMTP(**options) as server:
        if security == "starttls":
            server.starttls(context=context)
        if "user" in mail:
            server.login(mail["user"], mail["password"])
        server.send_message(message)


if __name__ == "__main__":
    main()
