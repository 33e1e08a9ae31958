"""The client of python-socketio that uses threads."""
import os
import queue
import sys
import threading

import engineio
import socketio

from lines import first, read, say


class Engine(engineio.Client):
    """Gives messages to one thread, in order. The client as it is gives each to a new one, attachments too, and nothing
    keeps these threads in order.

    Leaves it to the polling to end the connection, which says so. The client as it is ends it without a word when what
    it posts is refused, as after the loss of its session, and never comes back."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.received = queue.Queue()  # not bounded: the test sends what it can count
        threading.Thread(target=self.handle, daemon=True).start()

    def _trigger_event(self, event, *args, run_async=False):
        if not run_async:
            return super()._trigger_event(event, *args)
        self.received.put((event, args))

    def handle(self):
        while True:
            event, args = self.received.get()
            super()._trigger_event(event, *args)

    def _reset(self):
        if threading.current_thread() is not self.write_loop_task:
            super()._reset()


class Client(socketio.Client):
    def _engineio_client_class(self):
        return Engine


want = first()
client = Client()


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
