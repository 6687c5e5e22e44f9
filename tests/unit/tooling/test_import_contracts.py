"""The contract type `imports_only`: purity is what a module reaches, however far away."""

from typing import Any

import pytest
from grimp import ImportGraph
from importlinter.domain.contract import ContractCheck, InvalidContractOptions

from tools.import_contracts import ImportsOnlyContract


def check(imports: list[tuple[str, str]], **options: Any) -> ContractCheck:
    graph = ImportGraph()
    for importer, imported in imports:
        for module in (importer, imported):
            if module not in graph.modules:
                graph.add_module(module, is_squashed="." not in module and module != "app")
        graph.add_import(importer=importer, imported=imported)
    contract = ImportsOnlyContract(
        "pure", {"root_packages": ["app"]}, {"name": "pure", "type": "imports_only", **options}
    )
    return contract.check(graph, verbose=False)


def test_the_standard_library_is_allowed() -> None:
    assert check([("app.pure", "math")], modules=["app.pure"]).kept


def test_a_package_off_the_list_is_not() -> None:
    assert not check([("app.pure", "grpc")], modules=["app.pure"]).kept
    assert check([("app.pure", "numpy")], modules=["app.pure"], allow=["numpy"]).kept


def test_what_an_imported_module_imports_counts_and_the_chain_is_named() -> None:
    result = check([("app.pure", "app.io"), ("app.io", "grpc")], modules=["app.pure"])
    assert result.metadata["chains"] == [["app.pure", "app.io", "grpc"]]


def test_a_package_is_checked_with_its_submodules() -> None:
    imports = [("app.pure.deep", "torch"), ("app.pure", "math")]
    assert not check(imports, modules=["app.pure"]).kept


def test_only_a_name_in_parentheses_may_be_absent() -> None:
    assert check([("app.other", "grpc")], modules=["(app.pure)"]).kept
    with pytest.raises(InvalidContractOptions):
        check([("app.other", "grpc")], modules=["app.pure"])
