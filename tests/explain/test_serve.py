"""The server over a real socket, the static site, and both in a browser."""

import json
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request

import pytest

from smalti.explain.site import export
from tests.explain.test_reading import PLAIN

HOSTILE = "<script>alert(1)</script> & \"'"


@pytest.fixture(scope="module")
def address(index_file):
    uvicorn = pytest.importorskip("uvicorn")
    import socket

    from smalti.explain.serve import application
    from smalti.explain.store import Store

    store = Store(index_file)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application([store]), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(20)
    listening.close()
    store.close()


def ask(url, data=None, headers=None):
    """(status, headers, text)."""
    request = urllib.request.Request(url, data=data, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.headers, refused.read().decode()


def test_search_and_one(address):
    status, headers, text = ask(f"{address}/api/errors?q=above+item&package=pkg")
    found = json.loads(text)["errors"]
    assert status == 200 and [p["type"] for p in found] == ["OverflowError"]
    assert headers["access-control-allow-origin"] is None
    _, headers, text = ask(f"{address}/api/errors/{found[0]['id']}")
    assert json.loads(text)["guard"]["1"] == "item > limit"
    assert ask(f"{address}/api/errors/{found[0]['id']}", headers={"If-None-Match": headers["etag"]})[0] == 304
    status, _, page = ask(f"{address}/errors/{found[0]['id']}.html")
    assert status == 200 and 'aria-label="raised here"' in page and "not reachable" not in page


@pytest.mark.parametrize(
    ("query", "functions"),
    [
        ("type=Refused", ["Box.fold", "_work", "_work"]),
        ("function=run", ["run", "run", "run"]),
        ("q=fold&type=Refused", ["Box.fold"]),
        ("q=wide&family=not-supported", ["_task"]),
        ("q=fol", ["Box.fold"]),
        ("q=nothinglikethis", []),
        ("type=Refused&limit=1&offset=1", ["_work"]),
    ],
)
def test_filters(address, query, functions):
    found = json.loads(ask(f"{address}/api/errors?package=pkg&{query}")[2])["errors"]
    assert sorted(p["function"] for p in found) == functions


def test_match_families_description(address):
    status, _, text = ask(f"{address}/api/match", PLAIN.encode())
    assert status == 200 and json.loads(text)["matches"][0]["page"]["function"] == "run"
    body = json.dumps({"text": PLAIN}).encode()
    assert json.loads(ask(f"{address}/api/match", body, {"Content-Type": "application/json"})[2])["matches"]
    families = json.loads(ask(f"{address}/api/families")[2])["families"]
    assert families["not-supported"]["out"] and sum(f["pages"] for f in families.values()) > 300
    document = json.loads(ask(f"{address}/openapi.json")[2])
    paths, schemas = document["paths"], document["components"]["schemas"]
    answer = json.loads(text := ask(f"{address}/api/match", PLAIN.encode())[2])
    kinds = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}
    for name, value in (("Answer", answer), ("Match", answer["matches"][0]), ("Page", answer["matches"][0]["page"])):
        properties = schemas[name]["properties"]
        assert set(value) == set(properties) == set(schemas[name]["required"])
        assert all(isinstance(value[key], kinds[told.get("type", "object")]) for key, told in properties.items()), text
    assert set(paths) == {"/api/errors/{id}", "/api/errors", "/api/match", "/api/families"}


def test_hostile_questions(address):
    form = b"text=" + urllib.parse.quote(HOSTILE).encode()
    _, headers, page = ask(f"{address}/match.html", form, {"Content-Type": "application/x-www-form-urlencoded"})
    assert "<script>alert" not in page and "script-src 'self'" in headers["content-security-policy"]
    page = ask(f"{address}/?q={urllib.parse.quote(HOSTILE)}")[2]
    assert "<script>alert" not in page
    for path in (
        "errors/..%2f..%2fetc%2fpasswd",
        "assets/..%2fserve.py",
        "errors/%00",
        "api/errors/../../x",
        "nowhere",
    ):
        assert ask(f"{address}/{path}")[0] == 404, path
    assert ask(f"{address}/api/match", b"x" * ((8 << 20) + 1))[0] == 413
    assert ask(f"{address}/api/errors?q=%22%20OR%20*")[0] == 200
    assert ask(f"{address}/api/match", b"\xff\xfe\x00[" * 1000)[0] == 200
    assert ask(f"{address}/api/match", b"[" * 200_000, {"Content-Type": "application/json"})[0] == 200


@pytest.mark.parametrize(
    "bad",
    ["limit=abc", "limit=-1", "limit=0", "limit=201", "limit=", "limit=%C2%B2", "limit=1e2", "limit=" + "9" * 5000]
    + ["offset=-1", "offset=zzz", "offset=100001", "limit=1&offset=1.5"],
)
def test_numbers_outside_their_range(address, bad):
    status, headers, text = ask(f"{address}/api/errors?{bad}")
    assert status == 400 and headers["content-type"] == "application/json"
    legal = "from 0 to 100000" if "offset" in bad else "from 1 to 200"
    assert legal in json.loads(text)["error"] and len(text) < 200


def test_numbers_at_the_ends_of_their_range(address):
    document = json.loads(ask(f"{address}/openapi.json")[2])
    described = document["paths"]["/api/errors"]["get"]
    schemas = {p["name"]: p["schema"] for p in described["parameters"] if p["schema"]["type"] == "integer"}
    assert {name: (s["minimum"], s["maximum"]) for name, s in schemas.items()} == {
        "limit": (1, 200),
        "offset": (0, 100_000),
    }
    assert "400" in described["responses"]
    for name, schema in schemas.items():
        for value in (schema["minimum"], schema["maximum"]):
            status, _, text = ask(f"{address}/api/errors?{name}={value}")
            assert status == 200 and json.loads(text)[name] == value
    defaults = json.loads(ask(f"{address}/api/errors")[2])
    assert {name: defaults[name] for name in schemas} == {name: s["default"] for name, s in schemas.items()}


@pytest.mark.parametrize(
    "path",
    ["api", "api/", "api/nowhere", "api/errors/../../x", "api/errors/..%2f..%2fetc%2fpasswd", "api/%2e%2e%2fx"]
    + ["api%2fnowhere", "%61pi/x", "api/errors/a/b", "api/errors/nosuchid"],
)
def test_unknown_paths_of_the_api(address, path):
    status, headers, text = ask(f"{address}/{path}")
    assert status == 404 and headers["content-type"] == "application/json" and json.loads(text)["error"]
    assert headers["x-content-type-options"] == "nosniff"
    status, headers, text = ask(f"{address}/elsewhere/{path}")
    assert status == 404 and headers["content-type"].startswith("text/html") and "No such page" in text


def test_wrong_methods(address):
    status, headers, text = ask(f"{address}/api/match")
    assert (status, headers["allow"], headers["content-type"]) == (405, "POST", "application/json")
    assert json.loads(text)["error"]
    assert ask(f"{address}/match.html")[0] == 405


def told(application, host, server="127.0.0.1"):
    """Status of a request for the families whose Host header is `host`, over a connection to `server`."""
    import asyncio

    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": "/report.html", "raw_path": b"/report.html", "query_string": b"", "root_path": "",
        "headers": [(b"host", host.encode())] if host else [], "client": ("127.0.0.1", 1), "server": (server, 8642),
    }  # fmt: skip
    asyncio.run(application(scope, receive, send))
    return sent[0]["status"]


@pytest.mark.parametrize(
    ("listens", "good", "bad"),
    [
        ("127.0.0.1", ["localhost:8642", "LOCALHOST", "127.0.0.1:8642"], ["box.lan", "10.0.0.7"]),
        ("box.lan", ["box.lan", "Box.LAN:8642", "127.0.0.1", "localhost"], ["www.box.lan", "box.lan.evil.example"]),
        ("10.0.0.7", ["10.0.0.7:8642", "localhost"], ["10.0.0.8"]),
        ("fd00::7", ["[fd00::7]:8642", "[::1]:8642"], ["[fd00::8]:8642"]),
    ],
)
def test_foreign_host_headers(listens, good, bad):
    """What a page of another site can make a browser send, once its name resolves to this machine."""
    pytest.importorskip("starlette", minversion="1.10")  # older ones cut [::1] at its first colon
    from smalti.explain.serve import any_host, application

    served = application([], host=listens)
    assert not any_host(listens)
    for host in good:
        assert told(served, host) == 200, host
    for host in [*bad, "", "evil.example", "evil.example:8642", "localhost.evil.example", "127.0.0.1.evil.example"]:
        assert told(served, host) == 400, host


def test_host_headers_where_every_address_is_listened_on():
    pytest.importorskip("starlette")
    from smalti.explain.serve import any_host, application

    for wildcard in ("0.0.0.0", "::", "[::]", ""):
        assert any_host(wildcard) and told(application([], host=wildcard), "box.lan:8642") == 200
    assert told(application([]), "box.lan:8642") == 400
    assert told(application([]), "10.0.0.7:8642", server="10.0.0.7") == 200  # the address that was called


def test_foreign_host_headers_over_a_socket(address):
    assert ask(f"{address}/api/families", headers={"Host": "evil.example"})[0] == 400
    assert ask(f"{address}/api/match", PLAIN.encode(), {"Host": "evil.example:80"})[0] == 400
    assert ask(f"{address}/api/families", headers={"Host": "localhost"})[0] == 200


@pytest.fixture(scope="module")
def site(index_file, tmp_path_factory):
    from smalti.explain.index.build import Subject, index
    from smalti.explain.store import Store
    from tests.explain.conftest import lay

    root = tmp_path_factory.mktemp("site")
    bad = f"def f(x):\n    raise ValueError({HOSTILE!r} + f' {{x}}')  # {HOSTILE}\n"
    lay(root, {"src/bad/__init__.py": bad})
    index(Subject("bad", root / "src", "1<2"), root / "bad.sqlite")
    stores = [Store(index_file), Store(root / "bad.sqlite")]
    count = export(root / "site", stores)
    for store in stores:
        store.close()
    assert count > 300
    return root / "site"


def test_site_is_whole(site):
    ids = {p.stem for p in (site / "errors").glob("*.html")}
    assert ids == {p.stem for p in (site / "api/errors").glob("*.json")}
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert "<script>alert" not in text, path
        for target in re.findall(r'href="([^"#?:]+)[?#"]', text):
            assert (path.parent / target).exists(), (path.name, target)
    script = (site / "assets/pages.js").read_text()
    assert "<" not in script and json.loads(script[len("window.SMALTI_PAGES = ") : -2])
    assert not list(site.rglob("*.part"))


CHROMIUM = next((shutil.which(n) for n in ("chromium", "chromium-browser", "google-chrome") if shutil.which(n)), None)


def browse(url, *options, tmp):
    """Run headless Chromium on `url`."""
    assert CHROMIUM
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
        f"--user-data-dir={tmp}", "--virtual-time-budget=4000", *options, url,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs headless Chromium")
def test_search_works_from_file(site, tmp_path):
    text = browse(f"{(site / 'index.html').as_uri()}?q=item+above+limit", "--dump-dom", tmp=tmp_path)
    assert "OverflowError: item {index} is {item}, above {limit}" in text
    assert re.search(r'id="state"[^>]*>\d+ pages', text)


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs headless Chromium")
@pytest.mark.parametrize(("width", "dark"), [(390, False), (1200, True)])
def test_pages_fit_and_are_not_blank(site, tmp_path, width, dark):
    page = next(p for p in (site / "errors").glob("*.html") if "above {limit}" in p.read_text())
    shot = tmp_path / "shot.png"
    options = [f"--window-size={width},1600", f"--screenshot={shot}"]
    browse(page.as_uri(), *options, *(["--force-dark-mode"] if dark else []), tmp=tmp_path / "profile")
    data = shot.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(data[16:20], "big") == width and len(data) > 20_000
    probe = page.with_name("probe.html")
    script = "document.title = document.documentElement.scrollWidth + ' ' + window.innerWidth"
    (page.parent / "probe.js").write_text(script)
    probe.write_text(page.read_text().replace("</body>", '<script src="probe.js"></script></body>'))
    title = re.search(
        r"<title>(\d+) (\d+)<", browse(probe.as_uri(), f"--window-size={width},900", "--dump-dom", tmp=tmp_path / "p2")
    )
    assert title and int(title[1]) <= int(title[2]), title


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs headless Chromium")
def test_keyboard(site, tmp_path):
    """/ goes to the search box; everything else is reached by Tab in the order of the page."""
    page = site / "index.html"
    text = page.read_text()
    assert text.index('class="skip" href="#main"') < text.index("<header>") and 'id="main"' in text
    assert not re.findall(r'tabindex="[1-9]', text) and '<label for="q">' in text and '<label for="family">' in text
    key = 'document.dispatchEvent(new KeyboardEvent("keydown", {key: "/"}));'
    tell = 'setTimeout(function () { document.title = "at " + document.activeElement.id; }, 300);'
    (site / "keys.js").write_text(f"window.onload = function () {{ {key + tell} }};")
    probe = site / "keys.html"
    probe.write_text(text.replace("</body>", '<script src="keys.js"></script></body>'))
    try:
        assert "<title>at q<" in browse(probe.as_uri(), "--dump-dom", tmp=tmp_path / "keys")
    finally:
        probe.unlink()


def test_a_question_stays_in_its_form(address):
    text = ask(f"{address}/?q=above+%22item&family=dtype")[2]
    assert 'value="above &quot;item"' in text and '<option value="dtype" selected>' in text


def test_a_known_refusal_that_is_indexed_is_one_page(tmp_path):
    """Under the id of the other catalogue, too: with the place of the index; searches list it once."""
    pytest.importorskip("libcst")
    pytest.importorskip("starlette")
    from smalti.explain.index.build import Subject, index
    from smalti.explain.pages import page as document
    from smalti.explain.serve import Reference
    from smalti.explain.store import Store
    from tests.explain.conftest import lay

    source = "def _tcgen05_mma_abstract_eval(a):\n    if a:\n        raise ValueError('a_scale must be a TMEM Ref')\n"
    lay(tmp_path, {"jax/_src/pallas/mosaic_gpu/primitives.py": source, "jax/__init__.py": ""})
    index(Subject("jax", tmp_path, "9"), tmp_path / "jax.sqlite")
    store = Store(tmp_path / "jax.sqlite")
    reference = Reference([store])
    page = document(reference.page("6586b591b816d18e"))
    assert "primitives.py:3" in page and 'aria-label="raised here"' in page and "In Smalti" in page
    (found,) = reference.search({"q": "a_scale must be a TMEM Ref"}, 50, 0)
    assert (found.message, found.line) == ("a_scale must be a TMEM Ref", 3)
    export(tmp_path / "site", [store])
    text = (tmp_path / "site/errors/6586b591b816d18e.html").read_text()
    assert "primitives.py:3" in text and "the indexed site" in text
    assert (tmp_path / "site/assets/pages.js").read_text().count("a_scale must be a TMEM Ref") == 1
    store.close()
