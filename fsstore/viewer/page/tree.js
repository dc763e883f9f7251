// The tree of arrays and groups.  Names are put in as text, whatever they hold.

export class Tree {
  constructor(box, filter, chosen) {
    this.box = box;
    this.chosen = chosen;
    this.closed = new Set();
    this.members = [];
    filter.addEventListener('input', () => { this.wanted = filter.value.trim().toLowerCase(); this.draw(); });
    box.addEventListener('keydown', (event) => this.#key(event));
    this.wanted = '';
  }

  set(members, images, rootIsImage, root) {
    this.root = root || '/';
    this.images = new Set(images);
    this.members = [{ path: '', image: rootIsImage }, ...members];
    const arrays = this.members.filter((each) => each.shape).length;
    if (arrays > 60) for (const each of this.members) if (!each.shape && each.path.includes('/')) this.closed.add(each.path);
    this.draw();
  }

  /** Whether a path is that of a group, and not of an image. */
  isGroup(path) {
    const found = this.members.find((each) => each.path === path);
    return Boolean(found) && !found.shape && !found.image && !this.images.has(path);
  }

  /** What is directly in a group. */
  inside(path) {
    const above = path ? `${path}/` : '';
    return this.members.filter((each) => each.path && each.path.startsWith(above) && !each.path.slice(above.length).includes('/'));
  }

  select(path) {
    this.path = path;
    for (let above = path; above.includes('/');) { above = above.slice(0, above.lastIndexOf('/')); this.closed.delete(above); }
    this.draw();
  }

  #shown(each) {
    if (this.wanted) {
      const hit = (other) => `${other.path} ${other.about ?? ''}`.toLowerCase().includes(this.wanted);
      return hit(each) || this.members.some((other) => other.path.startsWith(`${each.path}/`) && other.shape && hit(other));
    }
    for (let above = each.path; above.includes('/');) {
      above = above.slice(0, above.lastIndexOf('/'));
      if (this.closed.has(above)) return false;
    }
    return true;
  }

  draw() {
    const rows = this.members.filter((each) => !(this.wanted && !each.path) && this.#shown(each)).slice(0, 2000).map((each) => this.#twig(each));
    this.box.replaceChildren(...rows);
    const current = this.box.querySelector('[aria-selected="true"]') ?? rows[0];
    if (current) current.tabIndex = 0;
  }

  #twig(each) {
    const twig = document.createElement('div'), depth = each.path ? each.path.split('/').length : 1;
    const isImage = each.image || this.images.has(each.path), isGroup = !each.shape && !each.image;
    twig.className = 'twig';
    twig.tabIndex = -1;
    twig.setAttribute('role', 'treeitem');
    twig.setAttribute('aria-level', depth);
    twig.setAttribute('aria-selected', String(each.path === this.path));
    twig.style.setProperty('padding-left', `${6 + (depth - 1) * 14}px`);
    twig.dataset.path = each.path;
    const fold = document.createElement('span');
    fold.className = 'fold';
    if (isGroup && each.path) {
      fold.textContent = '▸';
      twig.setAttribute('aria-expanded', String(this.wanted !== '' || !this.closed.has(each.path)));
    }
    const label = document.createElement('span');
    label.className = 'label';
    label.textContent = each.path ? each.path.slice(each.path.lastIndexOf('/') + 1) : this.root;
    twig.title = each.about || each.path;
    twig.append(fold, label);
    if (each.shape || isImage) {
      const size = document.createElement('span');
      size.className = 'size';
      size.textContent = isImage ? 'image' : each.shape.join('×') || 'scalar';
      twig.append(size);
    }
    fold.addEventListener('click', (event) => { if (isGroup && each.path) { event.stopPropagation(); this.#fold(each.path); } });
    twig.addEventListener('click', () => {
      if (isGroup && each.path && (each.path === this.path || this.closed.has(each.path))) this.#fold(each.path);
      this.chosen(each.path);
    });
    return twig;
  }

  #fold(path) {
    if (!this.closed.delete(path)) this.closed.add(path);
    this.draw();
  }

  #key(event) {
    const twig = event.target.closest('.twig');
    if (!twig) return;
    const twigs = [...this.box.children], at = twigs.indexOf(twig), path = twig.dataset.path;
    const to = (k) => { const next = twigs[Math.max(0, Math.min(twigs.length - 1, k))]; twig.tabIndex = -1; next.tabIndex = 0; next.focus(); };
    const refocus = () => this.box.querySelector(`[data-path="${CSS.escape(path)}"]`)?.focus();
    if (event.key === 'ArrowDown') to(at + 1);
    else if (event.key === 'ArrowUp') to(at - 1);
    else if (event.key === 'Home') to(0);
    else if (event.key === 'End') to(twigs.length - 1);
    else if (event.key === 'ArrowRight' && twig.getAttribute('aria-expanded') === 'false') { this.#fold(path); refocus(); }
    else if (event.key === 'ArrowLeft' && twig.getAttribute('aria-expanded') === 'true') { this.#fold(path); refocus(); }
    else if (event.key === 'Enter' || event.key === ' ') { twig.click(); refocus(); } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
