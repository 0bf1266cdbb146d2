"""The instructions that are run: every form, its operands, the least PTX version and target.

A line is ``entry modifiers : operands @ version target``.  A modifier ``.a|b`` is one of several,
``?`` means that it may be left out, capitals name a set of ``SETS``.  An operand is its role, then
``+`` (a register may be wider), ``:type`` (else the last modifier's; ``1`` that of the modifier
before, ``w`` twice as wide, ``x`` any), ``?``.  Roles: ``d`` is written, ``dq`` as well with a
predicate (``d|p``) or not, ``e`` as ``d|p``, ``dp`` a predicate, ``pq`` as ``p`` or ``p|q``, ``_``
the sink; ``a`` to ``c`` are read, ``p`` is a predicate, ``[a]`` an address, ``#`` a number, ``L`` a
name, ``h`` a policy (there with ``.L2::cache_hint`` only), ``{}`` registers in braces, ``*``
whatever the builder reads.

>>> [form] = find("mul.wide.u32")
>>> form.entry, form.operands, find("mul.lo.frob.u32")
('mul', ('d:w', 'a', 'b'), ())
>>> print(why_not("mul.lo.frob.u32"))
.frob is not what follows mul.lo; forms: mul.hi|lo.I

Source: PTX ISA 9.0, section 9.7; versions and targets as ptxas 13.0 takes them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["FORMS", "MODIFIERS", "SETS", "Form", "find", "runs_on", "why_not"]

SETS: Mapping[str, str] = {
    "I": "u16|u32|u64|s16|s32|s64",
    "I8": "u8|u16|u32|u64|s8|s16|s32|s64",
    "B": "b16|b32|b64",
    "T": "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64",
    "U2": "u16|u32|u64",
    "S2": "s16|s32|s64",
    "F": "f32|f64",
    "H": "f16|f16x2|bf16|bf16x2",
    "RND": "rn|rz|rm|rp",
    "RNI": "rni|rzi|rmi|rpi",
    "BOOL": "and|or|xor",
    "EQ": "eq|ne",
    "CMP": "eq|ne|lt|le|gt|ge",
    "CMPU": "eq|ne|lt|le|gt|ge|lo|ls|hi|hs",
    "CMPF": "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan",
    "SS": "const|global|local|param|param::entry|param::func|shared|shared::cta|shared::cluster",
    "SW": "global|local|param|param::func|shared|shared::cta|shared::cluster",
    "GS": "global|shared|shared::cta|shared::cluster",
    "SH": "shared|shared::cta",
    "SC": "shared|shared::cta|shared::cluster",
    "ANY": "const|global|local|shared|shared::cta|shared::cluster|param|param::entry",
    "SCOPE": "cta|cluster|gpu|sys",
    "E1": "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate",
    "E2": "L2::evict_normal|L2::evict_first|L2::evict_last",
    "VS": "global|shared|shared::cta|shared::cluster",
    "ACQ": "acquire.cta|acquire.cluster",
    "REL": "release.cta|release.cluster",
    "RLX": "relaxed.cta|relaxed.cluster",
    "HINT": "L2::cache_hint",
    "L2P": "L2::64B|L2::128B|L2::256B",
    "TX": "mbarrier::complete_tx::bytes",
    "LAYOUT": "row|col",
    "DIM": "1d|2d|3d|4d|5d",
    "REDUCE": "add|min|max|inc|dec|and|or|xor",
    "SEM": "relaxed|acquire|release|acq_rel",
    "RSEM": "relaxed|release",
    "EVICT": "L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged",
    "EVICT2": "L2::evict_first|L2::evict_unchanged",
    "AFTER": "acquire.sync_restrict::shared::cluster|release.sync_restrict::shared::cta",
    "MULTI": "multicast::cluster",
    "SHC": "shared::cta|shared::cluster",
    "TOGLOBAL": "global.shared::cta",
    "U4": "u32|s32|u64|s64",
    "CL": "shared::cluster",
    "ARRIVE": "mbarrier::arrive::one",
    "KIND": "kind::f16|kind::tf32|kind::f8f6f4|kind::i8",
    "COLLECT": "|".join(
        f"collector::a::{how}" for how in ("fill", "use", "lastuse", "discard")
    ),
    "SHAPE": "32x32b|16x64b|16x128b|16x256b",
    "S8": "u8|s8",
    "WGN": "|".join(f"m64n{n}k16" for n in range(8, 257, 8)),
    "WGN8": "|".join(f"m64n{n}k8" for n in range(8, 257, 8)),
    "WGN32": "|".join(f"m64n{n}k32" for n in range(8, 257, 8)),
    "WGNI": "|".join(f"m64n{n}k32" for n in (8, 16, 24, *range(32, 257, 16))),
    "WMMA": "m16n16k16|m8n32k16|m32n8k16",
    "F8": "e4m3|e5m2",
    "GROUP": "cta_group::1|cta_group::2",
    "TIMES": "x1|x2|x4|x8|x16|x32|x64|x128",
}
"""Alternatives by name."""

_FORMS = """
# Data movement
mov .pred|b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64 : d a
ld .weak? .SS? .ca|cg|cs|lu|cv? .E1? .HINT? .L2P? .v2|v4|v8? .T : d+ [a] h
ld .weak? .global? .E1? .E2 .HINT? .L2P? .v8.b32|v4.b64 : d [a] h @ 8.8 100
st .weak? .global? .E1? .E2 .HINT? .v8.b32|v4.b64 : [a] b h @ 8.8 100
ld .global .ca|cg|cs? .nc .E1? .HINT? .L2P? .v2|v4|v8? .T : d+ [a] h
ld .volatile .VS? .L2P? .v2|v4? .T : d+ [a]
ld .relaxed|acquire .SCOPE .VS? .E1? .HINT? .L2P? .v2|v4|v8? .T : d+ [a] h
ld .mmio .relaxed .sys .global? .T : d+ [a] @ 8.2 0
ldu .global? .v2|v4? .T : d+ [a]
st .weak? .SW? .wb|cg|cs|wt? .E1? .HINT? .v2|v4|v8? .T : [a] b+ h
st .volatile .VS? .v2|v4? .T : [a] b+
st .relaxed|release .SCOPE .VS? .E1? .HINT? .v2|v4|v8? .T : [a] b+ h
st .mmio .relaxed .sys .global? .T : [a] b+ @ 8.2 0
st.async .weak? .shared::cluster? .TX .v2|v4? .b32|b64|u32|u64|s32|s64|f32|f64 : [a] b [c] @ 8.1 90
st.bulk .weak? .shared::cta? : [a] b:u64 # @ 8.6 100
red.async .relaxed.cluster .shared::cluster? .TX .inc|dec .u32 : [a] b [c] @ 8.1 90
red.async .relaxed.cluster .shared::cluster? .TX .min|max .u32|s32 : [a] b [c] @ 8.1 90
red.async .relaxed.cluster .shared::cluster? .TX .add .u32|s32|u64 : [a] b [c] @ 8.1 90
red.async .relaxed.cluster .shared::cluster? .TX .BOOL .b32 : [a] b [c] @ 8.1 90
atom .SEM? .SCOPE? .GS? .exch .HINT? .b32|b64 : d [a] b h
atom .SEM? .SCOPE? .GS? .cas .b16|b32|b64 : d [a] b c
atom .exch .SEM .SCOPE .b32|b64 : d [a] b
atom .cas .SEM .SCOPE .b32|b64 : d [a] b c
atom .add .SEM .SCOPE .u32|s32|u64|f32|f64 : d [a] b
atom .SEM? .SCOPE? .GS? .BOOL .HINT? .b32|b64 : d [a] b h
atom .SEM? .SCOPE? .GS? .add .HINT? .u32|s32|u64|f32|f64 : d [a] b h
atom .SEM? .SCOPE? .GS? .inc|dec .HINT? .u32 : d [a] b h
atom .SEM? .SCOPE? .GS? .min|max .HINT? .U4 : d [a] b h
atom .SEM? .SCOPE? .GS? .add .noftz .HINT? .H : d [a] b h
atom .SEM? .SCOPE? .global? .add .HINT? .v2|v4 .f32 : d [a] b h @ 8.1 90
atom .SEM? .SCOPE? .global? .add|min|max .noftz .HINT? .v2|v4|v8 .f16|bf16 : d [a] b h @ 8.1 90
atom .SEM? .SCOPE? .global? .add|min|max .noftz .HINT? .v2|v4 .f16x2|bf16x2 : d [a] b h @ 8.1 90
red .RSEM? .SCOPE? .GS? .BOOL .HINT? .b32|b64 : [a] b h
red .RSEM? .SCOPE? .GS? .add .HINT? .u32|s32|u64|f32|f64 : [a] b h
red .RSEM? .SCOPE? .GS? .inc|dec .HINT? .u32 : [a] b h
red .RSEM? .SCOPE? .GS? .min|max .HINT? .U4 : [a] b h
red .RSEM? .SCOPE? .GS? .add .noftz .HINT? .H : [a] b h
red .RSEM? .SCOPE? .global? .add .HINT? .v2|v4 .f32 : [a] b h @ 8.1 90
red .RSEM? .SCOPE? .global? .add|min|max .noftz .HINT? .v2|v4|v8 .f16|bf16 : [a] b h @ 8.1 90
red .RSEM? .SCOPE? .global? .add|min|max .noftz .HINT? .v2|v4 .f16x2|bf16x2 : [a] b h @ 8.1 90
cvta .to? .ANY .u64 : d a
isspacep .const|global|local|shared|shared::cta|shared::cluster|param|param::entry : dp a:x
mapa .shared::cluster .u32|u64 : d a b:u32 @ 7.8 90
mapa .u64 : d a b:u32 @ 7.8 90
getctarank .shared::cluster .u32|u64 : d:u32 a @ 7.8 90
getctarank .u64 : d:u32 a @ 7.8 90
prefetch .global|local? .L1|L2 : [a]
prefetch .global .L2::evict_last|L2::evict_normal : [a] @ 7.4 80
prefetch .const|param? .tensormap : [a] @ 8.0 90
prefetchu .L1 : [a]
discard .global? .L2 : [a] # @ 7.4 80
applypriority .global? .L2::evict_normal : [a] # @ 7.4 80
createpolicy.fractional .EVICT .EVICT2? .b64 : d #? @ 7.4 80
createpolicy.range .global? .EVICT .EVICT2? .b64 : d [a] b:u32 c:u32 @ 7.4 80
createpolicy.cvt .L2 .b64 : d *
nanosleep .u32 : a
griddepcontrol .launch_dependents|wait : @ 7.8 90
# Arithmetic and conversion
add|sub|div|rem|min|max .I : d a b
add|sub .sat .s32 : d a b
add|sub .cc .U4 : d a b
addc|subc .cc? .U4 : d a b
add .u16x2|s16x2 : d a b @ 8.0 90
mul .hi|lo .I : d a b
mul .wide .u16|u32|s16|s32 : d:w a b
mad .hi|lo .I : d a b c
mad|mad24 .hi .sat .s32 : d a b c
mad .wide .u16|u32|s16|s32 : d:w a b c:w
mad .hi|lo .cc .U4 : d a b c
madc .hi|lo .cc? .U4 : d a b c
mul24 .hi|lo .u32|s32 : d a b
mad24 .hi|lo .u32|s32 : d a b c
dp4a .u32|s32 .u32|s32 : d:s32 a b c:s32
dp2a .lo|hi .u32|s32 .u32|s32 : d:s32 a b c:s32
sad .I : d a b c
abs|neg .S2 : d a
min|max .relu .s32 : d a b @ 8.0 90
min|max .u16x2 : d a b @ 8.0 90
min|max .relu? .s16x2 : d a b @ 8.0 90
add|sub|mul .RND? .ftz? .sat? .f32 : d a b
add|sub|mul .RND? .f64 : d a b
add|sub|mul .RND? .ftz? .f32x2 : d a b @ 8.6 100
fma .RND .ftz? .f32x2 : d a b c @ 8.6 100
add|sub|mul .rn? .ftz? .sat? .f16|f16x2 : d a b
add|sub|mul .rn? .bf16|bf16x2 : d a b @ 7.8 90
fma|mad .RND .ftz? .sat? .f32 : d a b c
fma|mad .RND .f64 : d a b c
fma .rn .ftz? .sat? .f16|f16x2 : d a b c
fma .rn .ftz? .relu .f16|f16x2 : d a b c @ 7.0 80
fma .rn .relu? .bf16|bf16x2 : d a b c @ 7.0 80
div .approx|full|rn|rz|rm|rp .ftz? .f32 : d a b
div .RND .f64 : d a b
abs|neg .ftz? .f32|f16|f16x2 : d a
abs|neg .f64|bf16|bf16x2 : d a
min|max .ftz? .NaN? .f32 : d a b
min|max .ftz? .NaN? .xorsign .abs .f32 : d a b @ 7.3 86
min|max .ftz? .NaN? .abs? .f32 : d a b c @ 8.8 100
min|max .f64 : d a b
min|max .ftz? .NaN? .f16|f16x2 : d a b @ 7.0 80
min|max .ftz? .NaN? .xorsign .abs .f16|f16x2 : d a b @ 7.3 86
min|max .NaN? .bf16|bf16x2 : d a b @ 7.0 80
min|max .NaN? .xorsign .abs .bf16|bf16x2 : d a b @ 7.3 86
sqrt|rcp .approx|rn|rz|rm|rp .ftz? .f32 : d a
sqrt|rcp .RND .f64 : d a
rcp .approx .ftz .f64 : d a
rsqrt .approx .ftz? .F : d a
ex2|lg2|sin|cos .approx .ftz? .f32 : d a
ex2 .approx .f16|f16x2 : d a @ 7.0 0
ex2 .approx .ftz .bf16|bf16x2 : d a @ 7.8 90
tanh .approx .f32|f16|f16x2|bf16|bf16x2 : d a @ 7.0 0
copysign .F : d a b
testp .finite|infinite|number|notanumber|normal|subnormal .F : dp a
cvt .sat? .I8 .I8 : d+:1 a+
cvt .RNI .ftz? .sat? .I8 .f32 : d+:1 a
cvt .RNI .sat? .I8 .f16 : d+:1 a
cvt .RNI .I .bf16 : d+:1 a @ 7.8 90
cvt .RNI .sat? .I8 .f64 : d+:1 a
cvt .RND .sat? .f16|f32|f64 .I8 : d+:1 a+
cvt .RND .bf16 .I : d+:1 a+ @ 7.8 90
cvt .ftz? .sat? .f32 .f16|bf16 : d+:1 a
cvt .sat? .f64 .f16|f32|bf16 : d+:1 a
cvt .ftz .f64 .f32 : d+:1 a
cvt .RND .ftz? .sat? .f32 .f64 : d+:1 a
cvt .RND .sat? .f16 .f64 : d+:1 a
cvt .RND .ftz? .sat? .f16 .f32 : d+:1 a
cvt .rn|rz .relu? .satfinite? .f16|bf16 .f32 : d+:1 a @ 8.1 0
cvt .rm|rp .bf16 .f32 : d+:1 a @ 7.0 80
cvt .RND .bf16 .f16|f64 : d+:1 a @ 7.8 90
cvt .RND .f16 .bf16 : d+:1 a @ 7.8 90
cvt .RNI? .ftz? .sat? .f32 .f32 : d+:1 a
cvt .RNI? .sat? .f64 .f64 : d+:1 a
cvt .RNI? .sat? .f16 .f16 : d+:1 a
cvt .RNI? .bf16 .bf16 : d+:1 a @ 7.8 90
cvt .rn|rz .relu? .satfinite? .f16x2|bf16x2 .f32 : d:1 a:f32 b:f32 @ 7.0 80
cvt .rna .satfinite? .tf32 .f32 : d:b32 a @ 7.0 80
cvt .rn|rz .satfinite? .relu? .tf32 .f32 : d:b32 a @ 7.8 90
cvt .rn .satfinite .relu? .e4m3x2|e5m2x2 .f32 : d:b16 a:f32 b:f32 @ 8.1 89
cvt .rn .satfinite .relu? .e4m3x2|e5m2x2 .f16x2 : d:b16 a:b32 @ 8.1 89
cvt .rn .relu? .f16x2 .e4m3x2|e5m2x2 : d:b32 a:b16 @ 8.1 89
# Comparison, selection, bits
and|or|xor .pred|b16|b32|b64 : d a b
not .pred|b16|b32|b64 : d a
cnot .B : d a
lop3 .b32 : d a b c #
shf .l|r .clamp|wrap .b32 : d a b c:u32
shl .B : d a b:u32
shr .b16|b32|b64|u16|u32|u64|s16|s32|s64 : d a b:u32
prmt .b32 .f4e|b4e|rc8|ecl|ecr|rc16? : d:b32 a:b32 b:b32 c:b32
bfe .u32|u64|s32|s64 : d a b:u32 c:u32
bfi .b32|b64 : d a b c:u32 c:u32
bmsk .clamp|wrap .b32 : d a b @ 7.8 0
szext .clamp|wrap .u32|s32 : d a b:u32 @ 7.8 0
fns .b32 : d a b c:s32
popc|clz .b32|b64 : d:u32 a
bfind .shiftamt? .u32|u64|s32|s64 : d:u32 a
brev .b32|b64 : d a
setp .EQ .B : pq a b
setp .CMPU .U2 : pq a b
setp .CMP .S2 : pq a b
setp .CMPF .ftz? .f32|f16|f16x2 : pq a b
setp .CMPF .f64|bf16|bf16x2 : pq a b
setp .EQ .BOOL .B : pq a b p
setp .CMPU .BOOL .U2 : pq a b p
setp .CMP .BOOL .S2 : pq a b p
setp .CMPF .BOOL .ftz? .f32|f16|f16x2 : pq a b p
setp .CMPF .BOOL .f64|bf16|bf16x2 : pq a b p
set .EQ .u32|s32|f32 .B : d:1 a b
set .CMPU .u32|s32|f32 .U2 : d:1 a b
set .CMP .u32|s32|f32 .S2 : d:1 a b
set .CMPF .ftz? .u32|s32|f32 .f32 : d:1 a b
set .CMPF .u32|s32|f32 .f64 : d:1 a b
set .CMPF .ftz? .f16|u16|s16|u32|s32 .f16 : d:1 a b
set .CMPF .bf16|u16|s16|u32|s32 .bf16 : d:1 a b @ 7.8 90
set .CMPF .ftz? .f16x2|u32|s32 .f16x2 : d:1 a b
set .CMPF .bf16x2|u32|s32 .bf16x2 : d:1 a b @ 7.8 90
set .EQ .BOOL .u32|s32|f32 .B : d:1 a b p
set .CMPU .BOOL .u32|s32|f32 .U2 : d:1 a b p
set .CMP .BOOL .u32|s32|f32 .S2 : d:1 a b p
set .CMPF .BOOL .ftz? .u32|s32|f32 .f32 : d:1 a b p
set .CMPF .BOOL .u32|s32|f32 .f64 : d:1 a b p
selp .b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64 : d a b p
slct .b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64 .s32 : d:1 a:1 b:1 c
slct .ftz? .b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64 .f32 : d:1 a:1 b:1 c
# Control flow, barriers of threads
bra .uni? : L
brx.idx .uni? : a:u32 L
call .uni? : * *? *? *?
ret .uni? :
exit|trap|brkpt :
bar .cta? .sync : a:u32 b:u32?
bar .cta? .arrive : a:u32 b:u32
bar .cta? .red .popc .u32 : d a b:u32? p
bar .cta? .red .and|or .pred : d:pred a:u32 b:u32? p
barrier .cta? .sync .aligned? : a:u32 b:u32?
barrier .cta? .arrive .aligned? : a:u32 b:u32
barrier .cta? .red .popc .aligned? .u32 : d a b:u32? p
barrier .cta? .red .and|or .aligned? .pred : d:pred a:u32 b:u32? p
barrier.cluster .arrive .release|relaxed? .aligned? : @ 7.8 90
barrier.cluster .wait .acquire? .aligned? : @ 7.8 90
# Shuffles, votes, matches
shfl.sync .up|down|bfly|idx .b32 : dq a b c c
vote.sync .all|any|uni .pred : dp p a:b32
vote.sync .ballot .b32 : d p a
match.any .sync .b32|b64 : d:b32 a b:b32
match.all .sync .b32|b64 : dq:b32 a b:b32
redux.sync .add|min|max .u32|s32 : d a b @ 7.0 80
redux.sync .BOOL .b32 : d a b @ 7.0 80
redux.sync .min|max .abs? .NaN? .f32 : d a b:b32 @ 8.8 100f
elect.sync : e:b32 a:b32 @ 8.0 90
activemask .b32 : d
bar.warp.sync : a:b32
# mbarrier and fences
mbarrier.init .SH? .b64 : [a] b:u32 @ 7.0 80
mbarrier.inval .SH? .b64 : [a] @ 7.0 80
mbarrier.expect_tx|mbarrier.complete_tx .RLX? .SC? .b64 : [a] b:u32 @ 8.0 90
mbarrier.arrive|mbarrier.arrive_drop .REL? .SH? .b64 : d [a] b:u32? @ 7.0 80
mbarrier.arrive|mbarrier.arrive_drop .REL? .shared::cluster .b64 : _ [a] b:u32? @ 8.0 90
mbarrier.arrive .RLX .SH? .b64 : d [a] b:u32? @ 8.6 90
mbarrier.arrive .RLX .shared::cluster .b64 : _ [a] b:u32? @ 8.6 90
mbarrier.arrive .expect_tx .REL? .SH? .b64 : d [a] b:u32 @ 8.0 90
mbarrier.arrive .expect_tx .REL? .shared::cluster .b64 : _ [a] b:u32 @ 8.0 90
mbarrier.arrive .expect_tx .RLX .SH? .b64 : d [a] b:u32 @ 8.6 90
mbarrier.arrive .expect_tx .RLX .shared::cluster .b64 : _ [a] b:u32 @ 8.6 90
mbarrier.arrive .noComplete .release.cta? .SH? .b64 : d [a] b:u32 @ 7.0 80
mbarrier.test_wait .ACQ? .SH? .b64 : dp [a] b @ 7.0 80
mbarrier.test_wait .parity .ACQ? .SH? .b64 : dp [a] b:u32 @ 7.0 80
mbarrier.test_wait .parity .RLX .SH? .b64 : dp [a] b:u32 @ 8.6 90
mbarrier.test_wait .RLX .SH? .b64 : dp [a] b @ 8.6 90
mbarrier.try_wait .ACQ? .SH? .b64 : dp [a] b c:u32? @ 7.8 90
mbarrier.try_wait .parity .ACQ? .SH? .b64 : dp [a] b:u32 c:u32? @ 7.8 90
mbarrier.try_wait .parity .RLX .SH? .b64 : dp [a] b:u32 c:u32? @ 8.6 90
mbarrier.try_wait .RLX .SH? .b64 : dp [a] b c:u32? @ 8.6 90
fence .sc|acq_rel|acquire|release? .SCOPE :
fence .AFTER .cluster : @ 8.6 90
fence .mbarrier_init .release .cluster : @ 8.0 90
fence.proxy|membar.proxy .alias :
fence.proxy .async : @ 8.0 90
fence.proxy .async.global|async.shared::cta|async.shared::cluster : @ 8.0 90
fence.proxy .async::generic .AFTER .cluster : @ 8.6 90
fence.proxy .tensormap::generic .release .SCOPE : @ 8.3 90
fence.proxy .tensormap::generic .acquire .SCOPE : [a] # @ 8.3 90
membar .cta|gl|sys :
# cp.async
cp.async .ca .SH .global .HINT? .L2P? : [a] [b] # c:x? h @ 7.0 80
cp.async .cg .SH .global .HINT? .L2P? : [a] [b] # c:x? h @ 7.0 80
cp.async.commit_group|cp.async.wait_all : @ 7.0 80
cp.async.wait_group : # @ 7.0 80
cp.async.mbarrier.arrive .noinc? .SH? .b64 : [a] @ 7.0 80
# Bulk and tensor copies
cp.async.bulk .SHC .global .TX .HINT? : [a] [b] b:u32 [c] h @ 8.0 90
cp.async.bulk .shared::cluster .global .TX .MULTI .HINT? : [a] [b] b:u32 [c] c:b16 h @ 8.0 90
cp.async.bulk .shared::cluster .shared::cta .TX : [a] [b] b:u32 [c] @ 8.0 90
cp.async.bulk .global .shared::cta .bulk_group .HINT? : [a] [b] b:u32 h @ 8.0 90
cp.async.bulk.tensor .DIM .SHC .global .tile? .TX .GROUP? .HINT? : [a] * [c] h @ 8.0 90
cp.async.bulk.tensor .DIM .CL .global .tile? .TX .MULTI .GROUP? .HINT? : [a] * [c] c:b16 h @ 8.0 90
cp.async.bulk.tensor .DIM .global .shared::cta .tile? .bulk_group .HINT? : * [b] h @ 8.0 90
cp.async.bulk.prefetch .L2 .global .HINT? : [a] b:u32 h @ 8.0 90
cp.async.bulk.prefetch.tensor .DIM .L2 .global .tile? .HINT? : * h @ 8.0 90
cp.async.bulk.commit_group : @ 8.0 90
cp.async.bulk.wait_group .read? : # @ 8.0 90
cp.reduce.async.bulk .TOGLOBAL .bulk_group .HINT? .BOOL .b32|b64 : [a] [b] b:u32 h @ 8.0 90
cp.reduce.async.bulk .TOGLOBAL .bulk_group .HINT? .add .u32|s32|u64|F : [a] [b] b:u32 h @ 8.0 90
cp.reduce.async.bulk .TOGLOBAL .bulk_group .HINT? .inc|dec .u32 : [a] [b] b:u32 h @ 8.0 90
cp.reduce.async.bulk .TOGLOBAL .bulk_group .HINT? .min|max .U4|f16|bf16 : [a] [b] b:u32 h @ 8.0 90
cp.reduce.async.bulk .TOGLOBAL .bulk_group .HINT? .add .noftz .f16|bf16 : [a] [b] b:u32 h @ 8.0 90
cp.reduce.async.bulk.tensor .DIM .TOGLOBAL .REDUCE .tile? .bulk_group .HINT? : * [b] h @ 8.0 90
# Matrices of a warp
ldmatrix .sync .aligned .m8n8 .x1|x2|x4 .trans? .SH? .b16 : d:b32 [a]
stmatrix .sync .aligned .m8n8 .x1|x2|x4 .trans? .SH? .b16 : [a] b:b32 @ 7.8 90
movmatrix .sync .aligned .m8n8 .trans .b16 : d:b32 a:b32
mma.sync .aligned .m16n8k8|m16n8k16 .row .col .f16 .f16 .f16 .f16 : {} {} {} {} @ 6.5 0
mma.sync .aligned .m16n8k8|m16n8k16 .row .col .f32 .f16 .f16 .f32 : {} {} {} {} @ 6.5 0
mma.sync .aligned .m16n8k8|m16n8k16 .row .col .f32 .bf16 .bf16 .f32 : {} {} {} {} @ 7.0 80
mma.sync .aligned .m16n8k4|m16n8k8 .row .col .f32 .tf32 .tf32 .f32 : {} {} {} {} @ 7.0 80
mma.sync .aligned .m16n8k16|m16n8k32 .row .col .f32 .F8 .F8 .f32 : {} {} {} {} @ 8.4 89
mma.sync .aligned .m16n8k16|m16n8k32 .row .col .f16 .F8 .F8 .f16 : {} {} {} {} @ 8.4 89
mma.sync .aligned .m8n8k16|m16n8k16|m16n8k32 .row .col .satfinite? .s32 .S8 .S8 .s32 : {} {} {} {} @ 6.5 0
mma.sync .aligned .m8n8k4|m16n8k4|m16n8k8|m16n8k16 .row .col .rn? .f64 .f64 .f64 .f64 : {} {} {} {} @ 7.0 80
wmma.load.a|wmma.load.b .sync .aligned .LAYOUT .WMMA .SS? .f16|bf16|u8|s8 : {} [a] b:u32?
wmma.load.c .sync .aligned .LAYOUT .WMMA .SS? .f16|f32|s32 : {} [a] b:u32?
wmma.load.a|wmma.load.b .sync .aligned .LAYOUT .m16n16k8 .SS? .tf32 : {} [a] b:u32?
wmma.load.c .sync .aligned .LAYOUT .m16n16k8 .SS? .f32 : {} [a] b:u32?
wmma.load.a|wmma.load.b|wmma.load.c .sync .aligned .LAYOUT .m8n8k4 .SS? .f64 : {} [a] b:u32?
wmma.store.d .sync .aligned .LAYOUT .WMMA .SW? .f16|f32|s32 : [a] {} b:u32?
wmma.store.d .sync .aligned .LAYOUT .m16n16k8 .SW? .f32 : [a] {} b:u32?
wmma.store.d .sync .aligned .LAYOUT .m8n8k4 .SW? .f64 : [a] {} b:u32?
wmma.mma .sync .aligned .LAYOUT .LAYOUT .WMMA .f16|f32 .f16|f32 : {} {} {} {}
wmma.mma .sync .aligned .LAYOUT .LAYOUT .WMMA .s32 .S8 .S8 .s32 .satfinite? : {} {} {} {}
wmma.mma .sync .aligned .LAYOUT .LAYOUT .WMMA .f32 .bf16 .bf16 .f32 : {} {} {} {}
wmma.mma .sync .aligned .LAYOUT .LAYOUT .m16n16k8 .f32 .tf32 .tf32 .f32 : {} {} {} {}
wmma.mma .sync .aligned .LAYOUT .LAYOUT .m8n8k4 .rn? .f64 .f64 .f64 .f64 : {} {} {} {}
# Matrices of a warpgroup
wgmma.fence|wgmma.commit_group .sync .aligned : @ 8.0 90a
wgmma.wait_group .sync .aligned : # @ 8.0 90a
wgmma.mma_async .sync .aligned .WGN .f16|f32 .f16 .f16 : {} * b:b64 p # # *? *? @ 8.0 90a
wgmma.mma_async .sync .aligned .WGN .f32 .bf16 .bf16 : {} * b:b64 p # # *? *? @ 8.0 90a
wgmma.mma_async .sync .aligned .WGN8 .f32 .tf32 .tf32 : {} * b:b64 p # # @ 8.0 90a
wgmma.mma_async .sync .aligned .WGN32 .f16|f32 .F8 .F8 : {} * b:b64 p # # @ 8.0 90a
wgmma.mma_async .sync .aligned .WGNI .s32 .S8 .S8 : {} * b:b64 p @ 8.0 90a
setmaxnreg .inc|dec .sync .aligned .u32 : # @ 8.0 90+a
# Tensor memory
tcgen05.alloc .GROUP .sync .aligned .shared::cta? .b32 : [a] b @ 8.6 100a
tcgen05.dealloc .GROUP .sync .aligned .b32 : a b @ 8.6 100a
tcgen05.relinquish_alloc_permit .GROUP .sync .aligned : @ 8.6 100a
tcgen05.ld .sync .aligned .SHAPE .TIMES .b32 : d [a] @ 8.6 100a
tcgen05.st .sync .aligned .SHAPE .TIMES .b32 : [a] b @ 8.6 100a
tcgen05.wait::ld|tcgen05.wait::st .sync .aligned : @ 8.6 100a
tcgen05.fence::before_thread_sync|tcgen05.fence::after_thread_sync : @ 8.6 100a
tcgen05.mma .GROUP .KIND .COLLECT? : [a] * b:b64 c:b32 p @ 8.6 100a
tcgen05.cp .GROUP .128x256b|4x256b|128x128b : [a] b:b64 @ 8.6 100a
tcgen05.cp .GROUP .32x128b .warpx4 : [a] b:b64 @ 8.6 100a
tcgen05.commit .GROUP .ARRIVE .shared::cluster? .b64 : [a] @ 8.6 100a
tcgen05.commit .GROUP .ARRIVE .shared::cluster? .MULTI .b64 : [a] b:b16 @ 8.6 100a
"""


@dataclass(frozen=True, slots=True)
class Form:
    """One line of the table: its opcode's modifiers and its operands as it spells them."""

    family: str
    entry: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    version: tuple[int, int]
    target: str
    pattern: re.Pattern[str]

    def __str__(self) -> str:
        return self.entry + "".join(
            f"{{.{m[:-1]}}}" if m.endswith("?") else f".{m}" for m in self.modifiers
        )


def _choice(modifier: str) -> str:
    """Return a modifier's alternatives, the sets among them spelt out."""
    return "|".join(SETS.get(part, part) for part in modifier.rstrip("?").split("|"))


def _read(table: str) -> Iterator[Form]:
    family = ""
    for line in table.splitlines():
        if line.startswith("#"):
            family = line[2:]
        if not line or family == line[2:]:
            continue
        form, _, least = line.partition(" @ ")
        opcode, _, operands = (form + " ").partition(" : ")
        entries, *modifiers = opcode.split()
        version, target = (*least.split(), "1.0", "0")[:2] if least else ("1.0", "0")
        major, minor = map(int, version.split("."))
        for entry in entries.split("|"):
            pattern = re.escape(entry)
            for modifier in modifiers:
                choice = "|".join(map(re.escape, _choice(modifier[1:]).split("|")))
                pattern += rf"(?:\.(?:{choice})){'?' * modifier.endswith('?')}"
            yield Form(
                family,
                entry,
                tuple(m[1:] for m in modifiers),
                tuple(operands.split()),
                (major, minor),
                target,
                re.compile(pattern),
            )


FORMS: tuple[Form, ...] = tuple(_read(_FORMS))
"""All of them."""
_BY_ENTRY: dict[str, list[Form]] = {}
for _form in FORMS:
    _BY_ENTRY.setdefault(_form.entry, []).append(_form)


def _starts(opcode: str) -> list[str]:
    parts = opcode.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


@functools.lru_cache(4096)
def find(opcode: str) -> tuple[Form, ...]:
    """Return the forms that an opcode has: more than one where their operands tell them apart."""
    for start in _starts(opcode):
        if found := tuple(f for f in _BY_ENTRY.get(start, ()) if f.pattern.fullmatch(opcode)):
            return found
    return ()


MODIFIERS: Mapping[str, tuple[tuple[int, int], str]] = {
    "shared::cta": ((7, 8), "0"),
    "shared::cluster": ((7, 8), "90"),
    "cluster": ((7, 8), "90"),
    "L2::cache_hint": ((7, 4), "80"),
}
"""Modifiers that ask for a version and a target wherever they stand."""


def runs_on(needs: str, target: str) -> bool:
    """Whether a target has what a form needs: ``90`` or later, ``90a`` alone, ``90+a``."""
    have = re.fullmatch(r"sm_(\d+)([af]?)", target)
    least = re.fullmatch(r"(\d+)(\+?)([af]?)", needs)
    if have is None or least is None:
        return have is not None
    number, exact = int(have.group(1)), least.group(3)
    if not exact or least.group(2):
        return number >= int(least.group(1)) and (not exact or bool(have.group(2)))
    family = {"100": (100, 101, 103, 110)}.get(least.group(1), (int(least.group(1)),))
    return number in family and bool(have.group(2))


def why_not(opcode: str) -> str:
    """Say where an opcode leaves all forms, and which forms come nearest."""
    best, near = -1, []
    for start in _starts(opcode):
        for form in _BY_ENTRY.get(start, ()):
            fits = _fits(form, opcode.split("."))
            if fits > best:
                best, near = fits, []
            if fits == best:
                near.append(str(form))
    if not near:
        return f"the instruction {opcode} is not run"
    parts = opcode.split(".")
    forms = f"forms: {', '.join(near[:4])}"
    if best == len(parts):
        return f"a modifier is missing after {opcode}; {forms}"
    return f".{parts[best]} is not what follows {'.'.join(parts[:best])}; {forms}"


def _fits(form: Form, parts: list[str]) -> int:
    """Return how many of an opcode's parts the form takes, from the left."""
    at = form.entry.count(".") + 1
    for modifier in form.modifiers:
        choices = _choice(modifier).split("|")
        width = choices[0].count(".") + 1
        if ".".join(parts[at : at + width]) in choices:
            at += width
        elif not modifier.endswith("?"):
            break
    return at
