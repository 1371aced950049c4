from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Column(_message.Message):
    __slots__ = ("name", "dtype", "shape", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Description(_message.Message):
    __slots__ = ("functions", "version", "observation_space", "action_space")
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_SPACE_FIELD_NUMBER: _ClassVar[int]
    ACTION_SPACE_FIELD_NUMBER: _ClassVar[int]
    functions: _containers.RepeatedCompositeFieldContainer[Function]
    version: int
    observation_space: str
    action_space: str
    def __init__(self, functions: _Optional[_Iterable[_Union[Function, _Mapping]]] = ..., version: _Optional[int] = ..., observation_space: _Optional[str] = ..., action_space: _Optional[str] = ...) -> None: ...

class Function(_message.Message):
    __slots__ = ("kind", "columns", "optional")
    KIND_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    OPTIONAL_FIELD_NUMBER: _ClassVar[int]
    kind: str
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    optional: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kind: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., optional: _Optional[_Iterable[str]] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("kind", "columns")
    KIND_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, kind: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("columns", "version", "problem")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    version: int
    problem: Problem
    def __init__(self, columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., version: _Optional[int] = ..., problem: _Optional[_Union[Problem, _Mapping]] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("kind", "line")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REFUSED: _ClassVar[Problem.Kind]
        FAILED: _ClassVar[Problem.Kind]
        CLOSING: _ClassVar[Problem.Kind]
    REFUSED: Problem.Kind
    FAILED: Problem.Kind
    CLOSING: Problem.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    kind: Problem.Kind
    line: str
    def __init__(self, kind: _Optional[_Union[Problem.Kind, str]] = ..., line: _Optional[str] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("hello", "start", "step")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    start: Start
    step: Step
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("name", "observation_space", "action_space")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_SPACE_FIELD_NUMBER: _ClassVar[int]
    ACTION_SPACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    observation_space: str
    action_space: str
    def __init__(self, name: _Optional[str] = ..., observation_space: _Optional[str] = ..., action_space: _Optional[str] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("observation",)
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    observation: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, observation: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("observation", "reward", "terminated", "truncated")
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    observation: _containers.RepeatedCompositeFieldContainer[Column]
    reward: float
    terminated: bool
    truncated: bool
    def __init__(self, observation: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., reward: _Optional[float] = ..., terminated: _Optional[bool] = ..., truncated: _Optional[bool] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("welcome", "action")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    action: Action
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., action: _Optional[_Union[Action, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("algo", "version")
    ALGO_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    algo: str
    version: int
    def __init__(self, algo: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class Action(_message.Message):
    __slots__ = ("action", "version")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    action: Column
    version: int
    def __init__(self, action: _Optional[_Union[Column, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...
