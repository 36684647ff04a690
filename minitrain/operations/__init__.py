"""What ranks do, as records: an operation stands once, with all that anybody has to know of it.

May import: `errors`, `tensors`. Open `collectives` first: the record of each collective says what its members must
bring and what they get, what it puts on the wire, what it does to memory, and what others call it. `computations` are
what a rank does alone: what each is given, and what others call it. A `Transfer` is a message or a move to the host.
Prices, laws, memory, strict runs, proofs, folded runs, logs and exports read the records; the method of a rank is in
the room `engine`.
"""

from minitrain.operations.event_log import COLLECTIVES as COLLECTIVES
from minitrain.operations.event_log import COMM as COMM
from minitrain.operations.event_log import COMMUNICATIONS as COMMUNICATIONS
from minitrain.operations.event_log import COMPUTE as COMPUTE
from minitrain.operations.event_log import COMPUTING as COMPUTING
from minitrain.operations.event_log import EVENT_TYPES as EVENT_TYPES
from minitrain.operations.event_log import FETCH as FETCH
from minitrain.operations.event_log import HOST_MOVES as HOST_MOVES
from minitrain.operations.event_log import LAUNCHED as LAUNCHED
from minitrain.operations.event_log import LAYER as LAYER
from minitrain.operations.event_log import LOAD_WEIGHTS as LOAD_WEIGHTS
from minitrain.operations.event_log import MEMORY as MEMORY
from minitrain.operations.event_log import NO_SAMPLES as NO_SAMPLES
from minitrain.operations.event_log import NOTE as NOTE
from minitrain.operations.event_log import OFFLOAD as OFFLOAD
from minitrain.operations.event_log import ON_COMPUTE as ON_COMPUTE
from minitrain.operations.event_log import ON_HOST as ON_HOST
from minitrain.operations.event_log import PASSES as PASSES
from minitrain.operations.event_log import PRICE as PRICE
from minitrain.operations.event_log import RECV as RECV
from minitrain.operations.event_log import SAMPLES as SAMPLES
from minitrain.operations.event_log import SEND as SEND
from minitrain.operations.event_log import STORES as STORES
from minitrain.operations.event_log import STREAM as STREAM
from minitrain.operations.event_log import STRIDE as STRIDE
from minitrain.operations.event_log import TIME as TIME
from minitrain.operations.event_log import TYP as TYP
from minitrain.operations.event_log import UNITS_PER_ELEMENT as UNITS_PER_ELEMENT
from minitrain.operations.event_log import UPDATE as UPDATE
from minitrain.operations.event_log import UPDATE_ON_HOST as UPDATE_ON_HOST
from minitrain.operations.event_log import WAITED_FOR as WAITED_FOR
from minitrain.operations.event_log import WRITE as WRITE
from minitrain.operations.event_log import Event as Event
from minitrain.operations.event_log import EventLog as EventLog
from minitrain.operations.event_log import MadeWhenRead as MadeWhenRead
from minitrain.operations.event_log import MemoryChange as MemoryChange
from minitrain.operations.event_log import Note as Note
from minitrain.operations.event_log import Outage as Outage
from minitrain.operations.event_log import ReadOnlyLog as ReadOnlyLog
from minitrain.operations.event_log import Stream as Stream
