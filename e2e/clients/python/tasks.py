"""The client of python-socketio that uses asyncio."""
import asyncio
import os
import sys

import socketio

from lines import first, read, say

want = first()


async def main():
    client = socketio.AsyncClient()

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
