"use strict";
(function () {
  var box = document.getElementById("q"), list = document.getElementById("results"), state = document.getElementById("state");
  document.addEventListener("keydown", function (event) {
    if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) { event.preventDefault(); if (box) { box.focus(); } else { window.location.href = document.querySelector("header a").href + "?q="; } }
  });
  if (box && /[?&]q=/.test(window.location.search)) { box.focus(); }
  if (!box || !list || !window.SMALTI_PAGES) { return; }
  var pages = window.SMALTI_PAGES, family = document.getElementById("family");
  function words(text) { return (text.toLowerCase().match(/[a-z0-9_]+/g) || []); }
  function run() {
    var asked = words(box.value), chosen = family ? family.value : "", found = [];
    for (var i = 0; i < pages.length; i++) {
      var p = pages[i], text = p[4], score = 0, all = true;
      if (chosen && p[3] !== chosen) { continue; }
      for (var j = 0; j < asked.length; j++) {
        if (text.indexOf(asked[j]) < 0) { all = false; } else { score += asked[j].length; }
      }
      if (asked.length === 0 || (score > 0 && (all || score * 2 > asked.join("").length))) { found.push([all ? score + 1000 : score, p]); }
    }
    found.sort(function (a, b) { return b[0] - a[0]; });
    list.textContent = "";
    found.slice(0, 60).forEach(function (item) {
      var p = item[1], li = document.createElement("li"), a = document.createElement("a"), small = document.createElement("small");
      a.href = "errors/" + p[0] + ".html"; a.textContent = p[1] + ": " + p[2]; small.textContent = p[5];
      li.appendChild(a); li.appendChild(small); list.appendChild(li);
    });
    state.textContent = found.length + " pages";
  }
  var asked = /[?&]q=([^&]*)/.exec(window.location.search);
  if (asked) { box.value = decodeURIComponent(asked[1].replace(/\+/g, " ")); }
  box.addEventListener("input", run); if (family) { family.addEventListener("change", run); }
  run();
})();
