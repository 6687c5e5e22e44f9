"""A contract type for import-linter: what the named modules reach must lie on a short list.

import-linter's own `forbidden` contract names what may not be imported; purity is the opposite statement. It knows
nothing of the packages it is used on.
"""

import sys
from typing import cast

from grimp import ImportGraph
from importlinter.application import output
from importlinter.domain import fields
from importlinter.domain.contract import Contract, ContractCheck, InvalidContractOptions


class ImportsOnlyContract(Contract):
    """The modules, and all that they import, reach only the standard library, their own distribution and `allow`.

    Options:
        modules: module names, submodules included; one in parentheses may be absent.
        allow: top-level packages that may be imported besides the standard library.
    """

    type_name = "imports_only"

    modules = fields.ListField(subfield=fields.StringField())
    allow = fields.SetField(subfield=fields.StringField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        chains: list[list[str]] = []
        for module in self._present(graph):
            own = module.partition(".")[0]
            permitted = sys.stdlib_module_names | cast(set[str], self.allow or set()) | {own}
            for reached in sorted(graph.find_upstream_modules(module, as_package=True)):
                if reached.partition(".")[0] not in permitted:
                    chain = graph.find_shortest_chain(module, reached, as_packages=True)
                    assert chain, f"{module} reaches {reached}, so there is a chain"
                    chains.append(list(chain))
        return ContractCheck(kept=not chains, metadata={"chains": chains})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for chain in check.metadata["chains"]:
            output.print_error(f"{chain[0]} may not reach {chain[-1]}:", bold=True)
            output.print_error("    " + " -> ".join(chain), bold=False)
            output.new_line()

    def _present(self, graph: ImportGraph) -> list[str]:
        present = []
        for name in cast(list[str], self.modules):
            module = name.strip("()")
            if module in graph.modules:
                present.append(module)
            elif module == name:
                raise InvalidContractOptions({"modules": f"Module '{name}' does not exist."})
        return present
