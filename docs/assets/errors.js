// The search of reference/errors: ranks the messages of the page by the words that they share with the pasted text.
function words(text) {
  return new Set(text.toLowerCase().match(/[a-z_]{3,}/g) || []);
}

function addSearch(box) {
  const entries = [...document.querySelectorAll(".md-typeset ul > li")]
    .filter((entry) => entry.firstElementChild && entry.firstElementChild.tagName === "CODE")
    .map((entry) => ({ entry, words: words(entry.firstElementChild.textContent.replace(/[A-Z_]{2,}/g, "")) }));
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "Paste a message";
  input.setAttribute("aria-label", "Search the messages");
  const found = document.createElement("ul");
  input.addEventListener("input", () => {
    const wanted = words(input.value);
    const score = (one) => [...one.words].filter((word) => wanted.has(word)).length;
    const best = entries
      .map((one) => ({ one, shared: score(one) }))
      .filter(({ shared }) => shared > 0)
      .sort((a, b) => b.shared - a.shared || a.one.words.size - b.one.words.size)
      .slice(0, 8);
    found.replaceChildren(...best.map(({ one }) => one.entry.cloneNode(true)));
  });
  box.append(input, found);
}

const box = document.getElementById("error-search");
if (box) addSearch(box);
