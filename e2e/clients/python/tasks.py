"""The client of python-socketio that uses asyncio."""
import asyncio
import os
import sys

import engineio
import socketio

from lines import first, read, say


class ComesBack(engineio.AsyncClient):
    """Leaves it to the polling to end the connection, which says so. The client as it is ends it without a word when what
    it posts is refused, as after the loss of its session, and never comes back."""

    def _reset(self):
        if asyncio.current_task() is not self.write_loop_task:
            super()._reset()


class Client(socketio.AsyncClient):
    def _engineio_client_class(self):
        return ComesBack


want = first()


async def main():
    client = Client()

    @client.event
    async def connect():
        say(connect={"sid": client.get_sid()})
        for method in want["methods"]:
            await client.emit("rpc-register", {"method": method}, callback=lambda answer, method=method: say(registered=method, answer=answer))

    @client.event
    async def disconnect():
        say(disconnect="")

    @client.on("rpc-request")
    async def on_request(request):
        return request.get("params")

    @client.on("*")
    async def on_event(event, *args):
        say(event=event, args=args)

    await client.connect(want["url"], auth=want["auth"], transports=want["transports"], wait_timeout=10)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = read(line)
        if "transport" in order:
            say(answer=order["transport"], data=client.transport())
            continue
        try:
            await client.emit(order["event"], order["data"], callback=lambda data=None, ask=order["ask"]: say(answer=ask, data=data))
        except socketio.exceptions.BadNamespaceError:
            say(answer=order["ask"], data={"ok": False, "code": "NOT_CONNECTED", "error": "the client is not connected"})
    os._exit(0)  # no goodbye


asyncio.run(main())
