"""The client of python-socketio that uses threads."""
import os
import sys

import socketio

from lines import first, read, say

# The client handles each message in a thread of its own, the attachments of a message too, and depends on these threads
# running in the order in which they were started. They do, unless the interpreter switches away from one of them.
sys.setswitchinterval(1)

want = first()
client = socketio.Client()


@client.event
def connect():
    say(connect={"sid": client.get_sid()})
    register()


@client.event
def disconnect():
    say(disconnect="")


@client.on("rpc-request")
def on_request(request):
    return request.get("params")


@client.on("*")
def on_event(event, *args):
    say(event=event, args=args)


def register():
    for method in want["methods"]:
        client.emit("rpc-register", {"method": method}, callback=lambda answer, method=method: say(registered=method, answer=answer))


client.connect(want["url"], auth=want["auth"], transports=want["transports"], wait_timeout=10)
for line in sys.stdin:
    order = read(line)
    if "transport" in order:
        say(answer=order["transport"], data=client.transport())
        continue
    try:
        client.emit(order["event"], order["data"], callback=lambda data=None, ask=order["ask"]: say(answer=ask, data=data))
    except socketio.exceptions.BadNamespaceError:
        say(answer=order["ask"], data={"ok": False, "code": "NOT_CONNECTED", "error": "the client is not connected"})
os._exit(0)  # no goodbye, and no waiting for the client's threads
