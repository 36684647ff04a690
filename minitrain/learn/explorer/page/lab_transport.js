// How questions of the page reach Python in the browser: two workers, each with an interpreter of its own.
//
// One answers for the figures, the other one, which begins when it is first asked, for legal values and charts, so that
// who drags a knob does not wait for those. Of one kind of question, one is answered at a time, and of those that come
// meanwhile the newest alone is next. Python in a worker cannot be interrupted: a worker whose answer takes too long, when
// a newer question waits for it, is ended and another one begins.

export const RIGHTS = 'in this page';
const PATIENCE_MS = 2000;
let say = () => {};

class Engine {
  constructor(begins) {
    this.begins = begins;
    this.waiting = [];
    this.running = null;
    this.worker = null;
  }

  start() {
    this.isReady = false;
    this.worker = new Worker(new URL('lab_worker.js', import.meta.url), { type: 'module' });
    this.worker.onmessage = ({ data }) => this.hear(data);
    this.worker.onerror = event => this.hear({ failed: event.message || 'its script could not be loaded' });
  }

  hear({ step, ready, message, isOver, failed }) {
    if (failed !== undefined) {
      say('');
      this.finish({ error: `Python ended in the browser (${failed}); change a knob, or load the page again`, fields: [] });
      return this.restart();
    }
    if (step && this.begins) say(step);
    if (ready) {
      this.isReady = true;
      this.since = performance.now();
      if (this.begins) say('starting minitrain ...');
    }
    if (message) {
      if (this.begins) say('');
      this.running?.take(JSON.parse(message));
    }
    if (isOver) this.finish();
  }

  finish(last) {
    const { running } = this;
    this.running = null;
    if (last) running?.take(last);
    running?.done();
    this.next();
  }

  restart() {
    this.worker.terminate();
    this.worker = null;
    this.next();
  }

  stop(tab) {
    if (!this.running || this.running.tab !== tab) return;
    const stopped = this.running;
    this.running = null;
    stopped.take({ error: 'the simulation was stopped; change a knob, or try again', fields: [], stopped: true });
    stopped.done();
    this.restart();
  }

  next() {
    if (this.running || !this.waiting.length) return;
    if (!this.worker) this.start();
    this.running = this.waiting.shift();
    this.since = performance.now();
    this.worker.postMessage([this.running.question, this.running.given]);
    this.hurry();
  }

  // End the answer that a newer question of its kind waits for, if it takes too long.
  hurry() {
    const { running } = this;
    if (!running || !this.waiting.some(one => one.lane === running.lane)) return;
    const left = this.isReady ? this.since + PATIENCE_MS - performance.now() : PATIENCE_MS;
    if (left > 0) setTimeout(() => this.hurry(), left);
    else this.stop(running.tab);
  }

  ask(one) {
    const old = this.waiting.findIndex(each => each.lane === one.lane);
    if (old >= 0) {
      const [replaced] = this.waiting.splice(old, 1);
      replaced.take({ superseded: true });
      replaced.done();
    }
    this.waiting.push(one);
    this.next();
    this.hurry();
  }
}

const first = new Engine(true),
  second = new Engine(false);
const FIRST = ['page', 'evaluate'];

export function open(_words, tell) {
  say = tell;
}

export function ask(question, { tab, ...given }, take) {
  if (question === 'stop') {
    first.stop(tab);
    second.stop(tab);
    return Promise.resolve();
  }
  const engine = FIRST.includes(question) ? first : second;
  return new Promise(done =>
    engine.ask({ question, given: JSON.stringify(given), tab, lane: `${tab} ${question}`, take, done }),
  );
}
