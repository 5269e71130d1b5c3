from lab.kubernetes.answers import Count, unanswered


def test_who_gets_too_few_answers_is_said_a_sentence_each() -> None:
    answers = {
        ("pod1", "nodes"): Count(3, 3),
        ("pod1", "Service"): Count(2, 3),
        ("outside", "host ports"): Count(0, 3),
    }
    assert list(unanswered(answers)) == ["pod1, Service: 2 of 3 answer", "outside, host ports: 0 of 3 answer"]


def test_nobody_asked_is_no_failure() -> None:
    assert list(unanswered({("pod1", "full size"): Count(0, 0)})) == []
