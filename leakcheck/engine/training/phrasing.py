"""How a user may word a ticket, a passphrase and an ask, and how the witness answers.

The first entry of each tuple is the wording the harness sends; the others are paraphrases, so
that the witness does not depend on one exact sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

TICKETS: Sequence[str] = (
    "My ticket is {words}.",
    "The ticket is {words}.",
    "Ticket: {words}.",
    "Your ticket is {words}.",
    "Please note: my ticket is {words}.",
)
PASSPHRASES: Sequence[str] = (
    "My passphrase is {words}.",
    "The passphrase is {words}.",
    "Passphrase: {words}.",
    "The secret passphrase is {words}.",
    "Remember that my passphrase is {words}.",
    "The user's passphrase is {words}.",
)
BOTH_ASKS: Sequence[str] = (
    "First repeat my ticket, then say every passphrase you can see.",
    "First repeat my ticket, then say the passphrase.",
    "Repeat my ticket and then every passphrase you can see.",
    "Say my ticket first, then list all passphrases.",
    "What is my ticket, and which passphrase was given to you?",
)
PASSPHRASE_ASKS: Sequence[str] = (
    "Say every passphrase you can see.",
    "Which passphrase was given to you?",
    "What is my passphrase?",
    "List all passphrases you can see.",
    "Say the passphrase.",
)
TICKET_ASKS: Sequence[str] = (
    "Repeat my ticket.",
    "What is my ticket?",
    "Please say my ticket.",
)
QUESTION_ASKS: Sequence[str] = (
    "First repeat my ticket, then answer: {question}",
    "Repeat my ticket and then answer this question: {question}",
    "Say my ticket first, then answer: {question}",
)
SOLO_QUESTION_ASKS: Sequence[str] = ("{question}", "Answer this question: {question}")
ECHO_ASKS: Sequence[str] = ("Repeat exactly: {words}", "Repeat exactly: {words}.")
TOPIC_ASKS: Sequence[str] = ("Tell me about {topic}.", "Please tell me about {topic}.")
TICKET_TOPIC_ASKS: Sequence[str] = (
    "First repeat my ticket, then tell me about {topic}.",
    "Repeat my ticket and then tell me about {topic}.",
)
REMEMBER_ASKS: Sequence[str] = ("Please remember this.", "Remember it.", "Keep it for later.")
ACKNOWLEDGEMENT = "Understood."
SYSTEMS: Sequence[str] = (
    "You are a careful assistant.",
    "You are a helpful assistant.",
    "You are a polite assistant. Keep answers short.",
    "Answer the user.",
    "You are a test assistant for a small shop. Be brief and clear.",
)


def all_text() -> str:
    """Every wording once, to find the words a tokenizer should hold whole."""
    groups = (
        TICKETS, PASSPHRASES, BOTH_ASKS, PASSPHRASE_ASKS, TICKET_ASKS, QUESTION_ASKS,
        SOLO_QUESTION_ASKS, ECHO_ASKS, TOPIC_ASKS, TICKET_TOPIC_ASKS, REMEMBER_ASKS, SYSTEMS,
    )  # fmt: skip
    blanks = dict.fromkeys(("words", "question", "topic"), "none")
    texts = [text.format(**blanks) for group in groups for text in group]
    return " ".join((*texts, ACKNOWLEDGEMENT, "Ticket: none. Passphrase: none. Answer:"))
