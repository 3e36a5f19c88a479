"""The keywords of our schemas as plain functions, which see that a document obeys.

A hundred times as fast as the draft's own validator, which is asked only where these say no: it
knows where and why.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]
Rule = Callable[[Any], bool]

NOTES = {"$schema", "$id", "$defs", "title", "description"}
KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
PLAIN = {"type", "minimum", "maximum", "pattern", *NOTES}  # keywords of what is not nested


def rule_of(schema: Schema) -> Rule:
    """Whether a value obeys for certain: whatever these functions refuse, the draft may allow, such
    as 1.0 as an integer. `type(v) is` and not isinstance: a Boolean is no integer."""
    rules = [RULES[key](value, schema) for key, value in schema.items() if key not in NOTES]
    if len(rules) == 1:
        return rules[0]
    return lambda v: all(rule(v) for rule in rules)


def of_kind(names: str | list[str], _: Schema) -> Rule:
    kinds = {kind for n in ([names] if isinstance(names, str) else names) for kind in KINDS[n]}
    return lambda v: type(v) in kinds


def same_as(value: Any, _: Schema) -> Rule:
    return one_of([value], {})


def one_of(values: list[Any], _: Schema) -> Rule:
    known = {(type(value), value) for value in values}  # True == 1
    return lambda v: type(v).__hash__ is not None and (type(v), v) in known


def properties(schemas: Mapping[str, Schema], _: Schema) -> Rule:
    rules = {key: rule_of(schema) for key, schema in schemas.items()}
    return lambda v: type(v) is not dict or all(r(v[key]) for key, r in rules.items() if key in v)


def other_properties(schema: Schema | bool, around: Schema) -> Rule:
    known = {*around.get("properties", ())}
    if isinstance(schema, bool):
        return lambda v: schema or type(v) is not dict or v.keys() <= known
    rule = rule_of(schema)
    return lambda v: type(v) is not dict or all(rule(v[key]) for key in v.keys() - known)


def required(names: list[str], _: Schema) -> Rule:
    return lambda v: type(v) is not dict or v.keys() >= {*names}


def items(schema: Schema, _: Schema) -> Rule:
    rule = rule_of(schema)
    return lambda v: type(v) is not list or fine(schema, v) or all(map(rule, v))


def fine(schema: Schema, values: list[Any]) -> bool:
    """Whether all of a list of plain ids or strings certainly obey: vectors hold half a million of
    them. False may also mean that this is not the place to tell."""
    if not schema.keys() <= PLAIN:
        return False
    if schema.get("type") == "integer" and "pattern" not in schema:
        low, high = schema.get("minimum", -(1 << 63)), schema.get("maximum", 1 << 63)
        return all(type(value) is int and low <= value <= high for value in values)
    if schema.get("type") == "string" and not schema.keys() & {"minimum", "maximum"}:
        obeys = re.compile(schema.get("pattern", "")).search
        return all(type(value) is str and obeys(value) for value in values)
    return False


def sized(kind: type, *, least: bool) -> Callable[[int, Schema], Rule]:
    def made(n: int, _: Schema) -> Rule:
        return lambda v: type(v) is not kind or (len(v) >= n if least else len(v) <= n)

    return made


def compared(fits: Callable[[Any, Any], bool]) -> Callable[[float, Schema], Rule]:
    def made(limit: float, _: Schema) -> Rule:
        return lambda v: type(v) not in KINDS["number"] or fits(v, limit)

    return made


def pattern(text: str, _: Schema) -> Rule:
    search = re.compile(text).search
    return lambda v: type(v) is not str or search(v) is not None


def exactly_one(schemas: list[Schema], _: Schema) -> Rule:
    rules = [rule_of(schema) for schema in schemas]
    return lambda v: sum(rule(v) for rule in rules) == 1


RULES: dict[str, Callable[[Any, Schema], Rule]] = {
    "type": of_kind,
    "const": same_as,
    "enum": one_of,
    "properties": properties,
    "additionalProperties": other_properties,
    "required": required,
    "items": items,
    "minItems": sized(list, least=True),
    "maxItems": sized(list, least=False),
    "minProperties": sized(dict, least=True),
    "minLength": sized(str, least=True),
    "minimum": compared(lambda v, limit: v >= limit),
    "maximum": compared(lambda v, limit: v <= limit),
    "exclusiveMinimum": compared(lambda v, limit: v > limit),
    "pattern": pattern,
    "oneOf": exactly_one,
}
