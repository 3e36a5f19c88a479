"""Text for tokenizer benchmarks: seeded text with the repetition of real prose, and one long
word."""

from lockstep.harness.synth.draws import stream

# the most frequent English words in order, which are a third of any text
COMMONEST = (
    "the of and to a in is it you that he was for on are with as I his they be at one have this "
    "from or had by not but what all were we when your can said there use an each which she do how "
    "their if will up other about out many then them these so some her would make like him into "
    "time has look two more write go see number no way could people my than first water been call "
    "who oil its now find long down day did get come made may part"
)
PARTS = (
    "ba con der fi gra han in jo ka lor men ni ous pre qui ra ser tion un ver wa xi ya zen sta pro "
    "ing al ed est im ble tri mo lu che pa ro di th"
)
COMMON, SYLLABLES = COMMONEST.split(), PARTS.split()
FOREIGN = (
    "Größe",
    "naïve",
    "привет",
    "мир",
    "你好",
    "世界",
    "東京",
    "안녕",
    "مرحبا",
    "😀",
    "½",
    "É",
)
CODE = ("x += 1;", "def f(a):\n    ", "if (n > 0) {", "return", "// ", "[i]", "==", "12345", "0x1F")
DISTINCT = 40_000  # number of different words; with punctuation, a megabyte contains about as many


def prose(n_bytes: int, seed: int) -> bytes:
    """Return mostly English words by Zipf's law, with punctuation, numbers, code and other
    scripts."""
    numbers = stream(seed, "bench.prose").random_raw(n_bytes) >> 32
    out: list[str] = []
    size = 0
    for number in numbers.tolist():
        kind, share = number & 0xFF, (number >> 8) / 2**24
        part = part_of(kind, share)
        out.append(part)
        size += len(part.encode())
        if size >= n_bytes:
            break
    return "".join(out).encode()[:n_bytes]


def part_of(kind: int, share: float) -> str:
    """Return the next part of the text: a word, punctuation, a number, another script or code.
    `kind` (0..255) selects the kind, and `share` (0..1) the member of this kind."""
    if kind < 216:
        return " " + word(int(DISTINCT**share) - 1)
    if kind < 236:
        return (", ", ". ", "; ", "! ", "'s", " (", ")", '"', "\n", "\n\n")[int(share * 10)]
    if kind < 242:
        return f" {int(share * 10**6)}"
    if kind < 248:
        return " " + word(int(DISTINCT**share) - 1).capitalize()
    if kind < 252:
        return " " + FOREIGN[int(share * len(FOREIGN))]
    return CODE[int(share * len(CODE))]


def word(rank: int) -> str:
    if rank < len(COMMON):
        return COMMON[rank]
    made = ""
    while rank:
        rank, at = divmod(rank, len(SYLLABLES))
        made += SYLLABLES[at]
    return made


def long_word(n_bytes: int, seed: int) -> bytes:
    """Return one word of n_bytes random letters, so merges are frequent and irregular."""
    letters = b"etaoinshrdlucmfwypvbgkjqxz"
    numbers = (stream(seed, "bench.word").random_raw(n_bytes) >> 32).tolist()
    return bytes(letters[int((number / 2**32) ** 2 * 26)] for number in numbers)
