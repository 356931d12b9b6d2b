"""Undocumented parts of Flower that the server needs; the import takes a second."""

from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.server.superlink.linkstate import LinkState, LinkStateFactory
from flwr.supercore import date
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, NodeStatus, TaskType
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_object import get_object_children_ids_from_object_content
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router

from ccfcpp.deployment.link.flower_internals import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    ObjectTree,
    PushMessagesRequest,
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    now,
    remove_content_from_message,
)
