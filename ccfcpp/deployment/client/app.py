"""Flower's ClientApp: it forwards each message to the resident worker.

It imports no PyTorch, so that no exchange waits for that.
"""

from multiprocessing.connection import Client

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ccfcpp.deployment.link.flower import packet_of, record_of
from ccfcpp.deployment.link.packet import Packet, receive, send

WORKER = "worker"
"""Key of the node's configuration: the path of the worker's socket."""

app = ClientApp()


@app.train("exchange")
def exchange(message: Message, context: Context) -> Message:
    """Return the worker's response; an empty packet if there is no worker.

    It never raises: Flower would send the exception's text to the server, paths and all.
    """
    answer = Packet(b"")
    try:
        packet = packet_of(message)
        with Client(str(context.node_config[WORKER]), "AF_UNIX") as worker:
            send(worker, packet)
            answer = receive(worker)
    except Exception as error:
        print(f"the worker does not answer: {error}")
    return Message(record_of(answer), reply_to=message)
