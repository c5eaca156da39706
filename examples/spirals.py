"""What the demo learns: which of two interleaved spirals a point is on. Plain numpy.

A network of two hidden layers, its weights one flat array. Nothing in here knows of tasks or
checkpoints, and nothing in here is drawn at random after the import: the same weights and the
same minibatch give the same gradient.
"""

from __future__ import annotations

import numpy as np

HIDDEN = 96
SAMPLES = 20_000
SHAPES = [(2, HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN,), (1,)]


def points() -> tuple[np.ndarray, np.ndarray]:
    """Points with some noise, and the side of each."""
    draw = np.random.default_rng(2025)
    side = draw.integers(0, 2, SAMPLES)
    turn = 3.5 * np.pi * np.sqrt(draw.random(SAMPLES))
    angle = turn + np.pi * side
    exact = np.stack([np.cos(angle), np.sin(angle)], axis=1) * (turn / 5)[:, None]
    return exact + draw.normal(0, 0.06, exact.shape), side.astype(float)


POINTS, SIDES = points()


def layers(flat: np.ndarray) -> list[np.ndarray]:
    """The parts of the one array that holds all weights, as views of it."""
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), SHAPES, strict=True)]


def new_weights() -> np.ndarray:
    flat = np.zeros(sum(int(np.prod(shape)) for shape in SHAPES))
    draw = np.random.default_rng(1)
    w1, _, w2, _, w3, _ = layers(flat)
    for weights, scale in ((w1, 1.0), (w2, HIDDEN**-0.5), (w3, HIDDEN**-0.5)):
        weights[:] = draw.normal(0, scale, weights.shape)
    return flat


def forward(flat: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    w1, b1, w2, b2, w3, b3 = layers(flat)
    first = np.tanh(x @ w1 + b1)
    second = np.tanh(first @ w2 + b2)
    return first, second, 1 / (1 + np.exp(-(second @ w3 + b3)))


def gradient(flat: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """Of the loss of one minibatch, given by the numbers of its points."""
    x, y = POINTS[batch], SIDES[batch]
    _, _, w2, _, w3, _ = layers(flat)
    first, second, guess = forward(flat, x)
    found = np.empty_like(flat)
    g1, c1, g2, c2, g3, c3 = layers(found)
    out = (guess - y) / len(y)
    back2 = np.outer(out, w3) * (1 - second**2)
    back1 = (back2 @ w2.T) * (1 - first**2)
    g1[:], c1[:], g2[:], c2[:] = x.T @ back1, back1.sum(0), first.T @ back2, back2.sum(0)
    g3[:], c3[:] = second.T @ out, out.sum()
    return found


def evaluate(flat: np.ndarray) -> dict[str, float]:
    guess = forward(flat, POINTS)[2].clip(1e-12, 1 - 1e-12)
    loss = -np.mean(SIDES * np.log(guess) + (1 - SIDES) * np.log(1 - guess))
    return {"loss": float(loss), "accuracy": float(np.mean((guess > 0.5) == SIDES))}
