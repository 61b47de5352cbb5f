package peer;

import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.BitSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Confluent's Parallel Consumer in KEY order, to be compared with Keylane on the same broker and
 * topic. Prints one JSON object.
 *
 * <p>Arguments: SERVERS TOPIC GROUP MESSAGES THREADS WORK_MICROS SECONDS. It ends when it has got so
 * many different messages, or after so many seconds.
 */
public final class ParallelPeer {
  /** The offsets of each partition that have succeeded. */
  private final Map<Integer, BitSet> done = new ConcurrentHashMap<>();
  /** The highest offset of each key in each partition. */
  private final Map<String, Long> keys = new ConcurrentHashMap<>();
  private final AtomicLong delivered = new AtomicLong();
  private final AtomicLong duplicates = new AtomicLong();
  private final AtomicLong outOfOrder = new AtomicLong();
  private final AtomicLong first = new AtomicLong();
  private final AtomicLong last = new AtomicLong();

  public static void main(String[] args) throws Exception {
    if (args.length != 7) {
      System.err.println("wanted: SERVERS TOPIC GROUP MESSAGES THREADS WORK_MICROS SECONDS");
      System.exit(2);
    }
    new ParallelPeer().run(args);
  }

  private void run(String[] args) throws Exception {
    long messages = Long.parseLong(args[3]);
    int threads = Integer.parseInt(args[4]);
    long workNanos = TimeUnit.MICROSECONDS.toNanos(Long.parseLong(args[5]));
    CountDownLatch all = new CountDownLatch(1);
    double cpuBefore = cpuSeconds();
    // Keys as text: it tells arrays of bytes apart by their identity, and so would keep no order.
    var options =
        ParallelConsumerOptions.<String, byte[]>builder()
            .consumer(new KafkaConsumer<String, byte[]>(properties(args[0], args[2])))
            .ordering(ProcessingOrder.KEY)
            .maxConcurrency(threads)
            .build();
    var processor = ParallelStreamProcessor.<String, byte[]>createEosStreamProcessor(options);
    processor.subscribe(List.of(args[1]));
    processor.poll(
        context -> {
          ConsumerRecord<String, byte[]> record = context.getSingleConsumerRecord();
          if (workNanos > 0) {
            sleep(workNanos);
          }
          note(record);
          if (delivered.get() >= messages) {
            all.countDown();
          }
        });
    all.await(Long.parseLong(args[6]), TimeUnit.SECONDS);
    double cpu = cpuSeconds() - cpuBefore;
    double elapsed = Math.max(0, last.get() - first.get()) / 1e9;
    System.out.printf(
        Locale.ROOT,
        "{\"delivered\":%d,\"elapsed_s\":%.6f,\"order_violations\":%d,\"duplicates\":%d,"
            + "\"cpu_s\":%.2f}%n",
        delivered.get(), elapsed, outOfOrder.get(), duplicates.get(), cpu);
    processor.closeDontDrainFirst(Duration.ofSeconds(20));
    System.exit(0);
  }

  private static Properties properties(String servers, String group) {
    Properties properties = new Properties();
    properties.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
    properties.put(ConsumerConfig.GROUP_ID_CONFIG, group);
    properties.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false);
    properties.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
    properties.put(ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class);
    properties.put(ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class);
    return properties;
  }

  /** A message was handled. */
  private void note(ConsumerRecord<String, byte[]> record) {
    long now = System.nanoTime();
    first.compareAndSet(0, now);
    int offset = Math.toIntExact(record.offset());
    BitSet seen = done.computeIfAbsent(record.partition(), partition -> new BitSet());
    synchronized (seen) {
      if (seen.get(offset)) {
        duplicates.incrementAndGet();
        return;
      }
      seen.set(offset);
    }
    Long before = keys.put(record.partition() + "/" + record.key(), record.offset());
    if (before != null && before > record.offset()) {
      outOfOrder.incrementAndGet();
    }
    last.accumulateAndGet(now, Math::max);
    delivered.incrementAndGet();
  }

  private static void sleep(long nanos) {
    try {
      TimeUnit.NANOSECONDS.sleep(nanos);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  private static double cpuSeconds() {
    var system = (com.sun.management.OperatingSystemMXBean)
        ManagementFactory.getOperatingSystemMXBean();
    return system.getProcessCpuTime() / 1e9;
  }
}
