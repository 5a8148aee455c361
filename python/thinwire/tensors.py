"""Which tensors of a tw_group the parameters of a model are."""
import bisect
import itertools


class Groups:
    """Parameter groups of an optimizer.

    of: for each parameter, the number of its group. options: for each group, the fields of
    tw_select_params in which it differs. rates: with AdamW before selection, a function that
    returns the rate of each group. applied: a function that returns what the optimizer applies to
    results, {name: number}, which must be the same on all ranks. is_adaptive: None if nobody knows.
    whole_updates: the optimizer looks at mean updates as whole vectors."""

    def __init__(self, of, options, rates=None, applied=dict, is_adaptive=None,
                 whole_updates=False):
        self.of, self.options, self.rates, self.is_adaptive = of, options, rates, is_adaptive
        self.applied, self.whole_updates = applied, whole_updates


class Tensors:
    """The tensors of a tw_group: the parameters, or with whole_model the parameter groups."""

    def __init__(self, sizes, groups, whole_model):
        members = [[number] for number in range(len(sizes))]
        if whole_model:
            members = [[] for _ in groups.options]
            for number, group in enumerate(groups.of):
                members[group].append(number)
        self.members = [numbers for numbers in members if numbers]
        self.groups = [groups.of[numbers[0]] for numbers in self.members]
        self.sizes = [sum(sizes[number] for number in numbers) for numbers in self.members]
        self.starts = [[0, *itertools.accumulate(sizes[number] for number in numbers)][:-1]
                       for numbers in self.members]

    def find(self, tensor, element):
        """The parameter to which an element belongs, and the element's number in it."""
        at = bisect.bisect_right(self.starts[tensor], element) - 1
        return self.members[tensor][at], element - self.starts[tensor][at]

    def split(self, vectors, sizes):
        """Vectors of the tensors as pieces, one for each parameter."""
        pieces = [None] * len(sizes)
        for vector, numbers in zip(vectors, self.members):
            for number, piece in zip(numbers, vector.split([sizes[one] for one in numbers])):
                pieces[number] = piece
        return pieces
