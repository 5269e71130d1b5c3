"""What the kernel answered is compared with what it answers: all of it but the counters."""

from services.masq.firewalls.evidence import Evidence

ANSWER = bytes((1, 2, 3, 4))
COUNTER = 0xFF00FFFF
"""A mask: the third byte is one."""


class Kernel:
    """Answers what it is told to."""

    def __init__(self) -> None:
        self.answer, self.error = ANSWER, 0
        self.place = bytearray(ANSWER)

    def __call__(self) -> int:
        self.place[:] = self.answer
        return self.error


def evidence_of(kernel: Kernel) -> Evidence:
    return Evidence(kernel, kernel.place, COUNTER, int.from_bytes(ANSWER, "little") & COUNTER)


def test_an_answer_is_other_if_anything_but_a_counter_is() -> None:
    kernel = Kernel()
    evidence = evidence_of(kernel)
    assert not evidence.is_other()
    kernel.answer = bytes((1, 2, 9, 4))
    assert not evidence.is_other()
    assert not evidence.is_other()
    kernel.answer = bytes((1, 2, 9, 5))
    assert evidence.is_other()
    assert evidence.is_other()
    kernel.answer = ANSWER
    assert not evidence.is_other()


def test_an_error_is_another_answer() -> None:
    kernel = Kernel()
    evidence = evidence_of(kernel)
    kernel.error = -1
    assert evidence.is_other()
